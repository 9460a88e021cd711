"""systemd timers: refused line by line, each with what to write instead. None is converted.

OnCalendar is another language (a weekday and a date must both hold there, seconds, ranges over a year's days), so a
reading as cron would often be nearly right, which is worse than a refusal.
"""

import re
from typing import Final

from rota.importers.result import Harvest, ImportResult, excerpt

_DIRECTIVE: Final = re.compile(
    r"[ \t]*(On[A-Za-z]*(?:Sec|Calendar|Change)|Persistent|RandomizedDelaySec|AccuracySec)[ \t]*=(.*)"
)
_WORDS: Final = {
    "minutely": "* * * * *",
    "hourly": "0 * * * *",
    "daily": "0 0 * * *",
    "weekly": "0 0 * * 1",
    "monthly": "0 0 1 * *",
    "quarterly": "0 0 1 1,4,7,10 *",
    "semiannually": "0 0 1 1,7 *",
    "yearly": "0 0 1 1 *",
    "annually": "0 0 1 1 *",
}
_SIMPLE: Final = re.compile(
    r"(?:(?P<days>[A-Z][a-z]{2}(?:(?:\.\.|,)[A-Z][a-z]{2})*) +)?(?:\*-\*-(?P<date>\*|[0-9]{1,2}) +)?"
    r"(?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{2})(?::00)?(?: +(?P<zone>[A-Z][A-Za-z]*(?:/[A-Za-z_+-]+)*))?"
)
_BOTH: Final = re.compile(r"[A-Z][a-z]{2}[A-Za-z.,]* +[0-9*~-]*-[^ ]*[0-9]")
_ADVICE: Final = {
    "Persistent": "Rota always remembers missed slots: choose the job's misfire policy",
    "RandomizedDelaySec": "set the job's jitter to it",
    "AccuracySec": "Rota fires at the slot",
}


def read_directive(text: str) -> tuple[str, str] | None:
    """Return a timer's directive and its value; None for any other line."""
    match = _DIRECTIVE.fullmatch(text)
    return None if match is None else (match[1], match[2].strip())


def read_systemd(data: bytes, *, file: str) -> ImportResult:
    """Refuse every line that fires a timer, and warn of those that shape it. No bytes raise."""
    harvest = Harvest(file)
    for number, raw in enumerate(data.split(b"\n"), start=1):
        directive = read_directive(raw.removesuffix(b"\r").decode("utf-8", errors="replace"))
        if directive is None:
            continue
        name, value = directive
        if name in _ADVICE:
            harvest.warn(number, f"{name}={value[:60]} is not imported: {_ADVICE[name]}")
        elif value:  # an empty one resets the list
            harvest.refuse(number, f"{name}={value[:60]}: systemd timers are not imported; {_hint(name, value)}")
    return harvest.result()


def _hint(name: str, value: str) -> str:
    if name != "OnCalendar":
        return "it counts from a start of the machine or unit: write an interval such as '@every 1h'"
    equivalent = _equivalent(value)
    if equivalent is not None:
        return f"in cron this is {equivalent}"
    if _BOTH.match(value):
        return (
            "a weekday and a date must both hold there, while cron takes a day that matches either:"
            " give the dates in cron, and test the weekday in the command"
        )
    return "write it as five cron fields (minute hour day-of-month month day-of-week), and give the zone apart"


def _equivalent(value: str) -> str | None:
    """Return the cron fields of a simple calendar expression, quoted, with its zone; None for any other."""
    if value.lower() in _WORDS:
        return repr(_WORDS[value.lower()])
    match = _SIMPLE.fullmatch(value)
    if match is None or (match["days"] and match["date"] not in (None, "*")):
        return None
    days = (match["days"] or "*").replace("..", "-")
    date = (match["date"] or "*").lstrip("0")
    cron = f"{int(match['minute'])} {int(match['hour'])} {date} * {days}"
    return repr(cron) + (f" in {excerpt(match['zone'])}" if match["zone"] else "")
