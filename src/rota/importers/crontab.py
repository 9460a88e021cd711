"""Crontabs, a user's or the system's, as shell jobs: one job an entry, one refusal a bad line, nothing lost between.

How an entry becomes a job:
- handler `shell`; payload {"command", "stdin", "environment", "shell", "user"}: what cron would hand to the shell.
- Misfire `skip` and a start deadline before the next slot: cron makes nothing up, neither slots that it missed nor
  runs that found no worker in time, and its users count on that. Overlap `allow`, as in cron. A timeout of a day,
  since cron has none.
- The job id is made of the file's base name, words of the command and a hash of the entry's own text and user, with a
  count among identical entries. So a re-import changes nothing, another zone changes the job, other lines may come and
  go, and an edited entry is another job.
- `~` and `H` become one time each, taken from the job's id (`rota.importers.spread`).
"""

import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise
from typing import Final

from rota.domain.job import Job
from rota.domain.misfire import Skip
from rota.domain.schedule import Schedule, cron
from rota.errors import InvalidInput
from rota.importers.crontab_lines import (
    Bad,
    Comment,
    Entry,
    Line,
    Variable,
    cut_at_percent,
    first_word,
    read_lines,
    why_cut_short,
)
from rota.importers.crontab_user import LOGIN_NAME, UserColumn, find_user_column, is_command_name
from rota.importers.result import Harvest, ImportResult, excerpt
from rota.importers.spread import is_spread, spread

SHELL_HANDLER: Final = "shell"
DEFAULT_SHELL: Final = "/bin/sh"
SHELL_TIMEOUT: Final = timedelta(days=1)
VARIABLE_LIMIT: Final = 100
"""The most environment variables of an entry, and ENVIRONMENT_LIMIT the most characters in all of them."""
ENVIRONMENT_LIMIT: Final = 16 * 1024

_MACROS: Final = frozenset({"@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually"})
_ANACRON: Final = re.compile(
    r"[ \t]*(\d{1,5}|@(daily|weekly|monthly|yearly|annually))[ \t]+\d{1,5}[ \t]+"
    r"(?![\dLW?,#-]+[ \t])(?=[^ \t*]*[A-Za-z])[^ \t=]+[ \t]+[^ \t]"
)
_CRON: Final = re.compile(
    r"[ \t]*-?([*\dH~][\w*/,~()-]*[ \t]+){2}[*?\dH~][\w*/,?~()-]*[ \t]+[\w*/,~?()-]+[ \t]+[\w*/,?~#()-]+[ \t]+[^ \t]"
)
_SIXTH_FIELD: Final = re.compile(
    r"[\d*?][\d*?,/#LW-]*|(SUN|MON|TUE|WED|THU|FRI|SAT)([-,#](SUN|MON|TUE|WED|THU|FRI|SAT|\d))*", re.IGNORECASE
)
"""A word that is a time field, and neither a user nor a command."""
LONGEST_PATIENCE: Final = timedelta(hours=1)
"""How late a run of a rare entry may start; one of a frequent entry may not reach the next slot."""
_PATIENCE_FROM: Final = datetime(2026, 1, 1, tzinfo=UTC)
_PATIENCE_SLOTS: Final = 25
_MACRO_ENTRY: Final = re.compile(r"[ \t]*@[a-z]+[ \t]+[^ \t]")
# Redirections, short options and folders say little and fill a name: /usr/lib/zfs-linux/trim is "trim".
_NOISE: Final = re.compile(r"[0-9&]?>>?[ \t]*[^\s;|]+|(?<=\s)-\w\b|[^\s'\"=]{0,200}/(?=[^\s/])")


def read_crontab(data: bytes, *, file: str, tz: str | None = None, system: bool | None = None) -> ImportResult:
    """Read a crontab. Bad lines are refused one by one; no bytes raise.

    `tz` is the zone of entries that no CRON_TZ stands above. `system` says whether there is a user column; None
    finds out. Raises InvalidSchedule only for a `tz` that is no zone.
    """
    harvest = Harvest(file)
    tz = harvest.default_zone(tz)
    anacron_line = find_anacron(data)
    if anacron_line is not None:
        harvest.refuse(
            anacron_line,
            "the file is an anacrontab: its columns are a period in days, a delay in minutes, an identifier and a"
            " command, not minutes and hours, so nothing of it was read (write '@daily COMMAND', or five time fields)",
        )
        return harvest.result()
    column = UserColumn(system) if system is not None else _find_column(data, harvest)
    reader = _Reader(harvest=harvest, default_tz=tz, tz=tz, column=column)
    for number, line in read_lines(data):
        reader.read(number, line)
    return harvest.result()


def find_anacron(data: bytes) -> int | None:
    """Return the first line that only anacron could read, unless cron could read another line of the file."""
    first = None
    for number, raw in enumerate(data.split(b"\n"), start=1):
        text = raw[:1000].decode("utf-8", errors="replace")
        if _ANACRON.match(text):
            first = number if first is None else first
        elif looks_like_cron(text):
            return None
    return first


def looks_like_cron(text: str) -> bool:
    """Whether a line has the outer shape of an entry: five time fields or a macro, and a command."""
    return _CRON.match(text) is not None or _MACRO_ENTRY.match(text) is not None


def _find_column(data: bytes, harvest: Harvest) -> UserColumn:
    column = find_user_column(read_lines(data), file=harvest.file)
    if column.doubt:
        first = next((number for number, line in read_lines(data) if isinstance(line, Entry)), 1)
        assumed = "a system crontab with a user column" if column.present else "a user's crontab without a user column"
        harvest.warn(first, f"{column.doubt}: read as {assumed} (say --system or --user if you know)")
    return column


@dataclass(slots=True)
class _Reader:
    """The state that cron carries from line to line."""

    harvest: Harvest
    default_tz: str
    column: UserColumn
    tz: str = ""
    shell: str = DEFAULT_SHELL
    environment: dict[str, str] = field(default_factory=dict)
    zone_line: int = 0  # of the CRON_TZ in force, 0 for none
    zone_lost: bool = False  # that line was refused, so nobody knows the zone
    seen: Counter[tuple[str, ...]] = field(default_factory=Counter)

    def read(self, number: int, line: Line) -> None:
        match line:
            case Comment():
                pass
            case Bad(reason, sets_zone):
                self.harvest.refuse(number, reason)
                if sets_zone:
                    self.zone_line, self.zone_lost = number, True
            case Variable("CRON_TZ", value):
                self.set_zone(number, value)
            case Variable("SHELL", value):
                self.shell = value or DEFAULT_SHELL
            case Variable(name, value):
                self.set_variable(number, name, value)
            case Entry():
                try:
                    self.add(number, line)
                except InvalidInput as error:
                    self.harvest.refuse(number, str(error))

    def set_zone(self, number: int, zone: str) -> None:
        self.zone_line, self.zone_lost = number, False
        if not zone:
            self.zone_line, self.tz = 0, self.default_tz
            return
        try:
            self.harvest.check_zone(zone)
        except InvalidInput as error:
            self.zone_lost = True
            self.harvest.refuse(number, f"CRON_TZ: {error.reason}; the entries below it are refused with it")
        else:
            self.tz = zone

    def set_variable(self, number: int, name: str, value: str) -> None:
        if name == "RANDOM_DELAY":
            text = f"RANDOM_DELAY={value[:40]} is not imported: give the jobs below a jitter"
            minutes = value if value.isascii() and value.isdigit() and len(value) < 4 else "30"
            self.harvest.warn(number, f"{text} (rota job set JOB --jitter {minutes}m)")
            return
        # Copied, not changed: the jobs above share the dict that they were made with.
        environment = {**self.environment, name: value}
        size = sum(len(key) + len(text) for key, text in environment.items())
        if len(environment) > VARIABLE_LIMIT or size > ENVIRONMENT_LIMIT:
            limits = f"{VARIABLE_LIMIT} variables and {ENVIRONMENT_LIMIT} characters"
            self.harvest.refuse(number, f"{name}: the environment would grow past {limits}")
            return
        self.environment = environment
        if name == "MAILTO" and value:
            self.harvest.warn_once(
                "mail", number, "MAILTO: Rota sends no mail; the variable is only handed to the commands"
            )
        elif name == "TZ":
            self.harvest.warn(
                number, f"TZ is handed to the commands and moves no schedule: entries stay in {self.tz} (set CRON_TZ)"
            )
        elif re.search(r"\$[A-Za-z_{]", value):
            self.harvest.warn(
                number, f"{name}: cron expands no variables in a value, so the '$' stays as it is written"
            )

    def add(self, number: int, entry: Entry) -> None:
        """Make the entry's job. Raises InvalidInput for an entry that cannot be one."""
        if self.zone_lost:
            raise InvalidInput("CRON_TZ", f"line {self.zone_line} was refused, so the zone of this entry is not known")
        _check_macro(entry.expression)
        _check_fields(entry)
        user, text = self.user_of(entry)
        command, given = cut_at_percent(text)
        if not command.strip(" \t"):
            raise InvalidInput("command", "nothing stands before the '%', so there is nothing to run")
        key = (entry.expression, user or "", text)
        job_id = _job_id(self.harvest.file, command, key, index=self.seen[key])
        expression = entry.expression
        if is_spread(expression):
            expression = spread(expression, seed=job_id)
            self.harvest.warn(number, f"{excerpt(entry.expression)} becomes {excerpt(expression)}, from the job's id")
        schedule = cron(expression, tz=self.tz)
        job = Job(
            job_id=job_id,
            handler=SHELL_HANDLER,
            schedule=schedule,
            payload={
                "command": command,
                "stdin": given or "",
                "environment": self.environment,
                "shell": self.shell,
                "user": user,
            },
            misfire=Skip(),
            start_deadline=_patience(schedule),
            timeout=SHELL_TIMEOUT,
            labels={"imported-from": "crontab"},
            description=f"from the crontab {_base_name(self.harvest.file)}",
        )
        former = _job_id(self.harvest.file, command, (*key, self.tz), index=self.seen[key])
        self.seen[key] += 1
        self.harvest.add(job, line=number, former_id=former)
        self.caution(number, entry, command, cut=given is not None)
        for warning in schedule.warnings:
            self.harvest.warn(number, warning)

    def user_of(self, entry: Entry) -> tuple[str | None, str]:
        """Return the user and the command of an entry; no user in a user's crontab."""
        if not self.column.present:
            return None, entry.rest
        user, command = first_word(entry.rest)
        if not LOGIN_NAME.fullmatch(user) or (self.column.doubt and is_command_name(user)):
            hint = "a system crontab has a user before the command; for a user's own crontab say --user"
            raise InvalidInput("user", f"{excerpt(user)} is no user name", hint=hint)
        if not command:
            raise InvalidInput("command", f"nothing stands after the user {excerpt(user)}")
        return user, command

    def caution(self, number: int, entry: Entry, command: str, *, cut: bool) -> None:
        """Warn of what cron does and the author may not have meant."""
        warn, warn_once = self.harvest.warn, self.harvest.warn_once
        why = why_cut_short(command) if cut else None
        if why is not None:
            warn(
                number,
                f"cron cuts the command at an unescaped '%' and runs only {excerpt(command)}, and {why} (write \\%)",
            )
        if (len(command) - len(command.rstrip("\\"))) % 2:
            warn(number, "the command ends in a backslash: cron knows no continued lines, the next one stands alone")
        if _BACKGROUND.search(command):
            warn(
                number,
                "'&' leaves something in the background: the run ends without it, and what still writes to the"
                " command's output is ended with the worker (send its output elsewhere, or leave out the '&')",
            )
        if entry.quiet:
            warn_once("quiet", number, "the leading '-' (do not log) is read and left out: Rota records every run")
        if not self.zone_line:
            warn_once(
                "zone",
                number,
                f"no CRON_TZ stands above this line: times are read in {self.tz} (say --tz, or set CRON_TZ)",
            )
        if self.column.present:
            warn_once("user", number, "the user column is kept in the payload, and commands run as the worker's user")


def _check_fields(entry: Entry) -> None:
    """Refuse a line of more than five time fields, whose rest would be taken for a user or a command."""
    word = first_word(entry.rest)[0]
    if entry.expression.startswith("@") or not _SIXTH_FIELD.fullmatch(word):
        return
    fields = entry.expression.split()
    reason = f"{excerpt(word)} is a sixth time field: crontabs have five, neither seconds nor years"
    if re.fullmatch(r"(19|20)\d\d([-,/]\d+)*", word):
        raise InvalidInput("schedule", reason, hint=f"leave the year out: '{entry.expression}'")
    minutes = [field.replace("?", "*") for field in (*fields[1:], word)]
    raise InvalidInput("schedule", reason, hint=f"leave the seconds out: '{' '.join(minutes)}'")


@lru_cache(maxsize=4096)
def _patience(schedule: Schedule) -> timedelta:
    """Return how late a run may start: before the next slot, as far as slots repeat, and within an hour."""
    slots, at = [], _PATIENCE_FROM
    for _ in range(_PATIENCE_SLOTS):
        later = schedule.next_slot(at)
        if later is None:
            break
        slots.append(later)
        at = later
    gaps = [later - earlier for earlier, later in pairwise(slots)]
    return min([LONGEST_PATIENCE, *gaps])


_BACKGROUND: Final = re.compile(r"(?<![&>|])&\s*$|\s&\s")
"""An '&' by itself: no '&&', no redirection, none inside an address."""


def _check_macro(expression: str) -> None:
    if expression == "@reboot":
        raise InvalidInput(
            "schedule",
            "@reboot has no meaning for a fleet: no one machine's start could be meant",
            hint="start it with the machine, by a systemd unit, or give it a time",
        )
    if expression.startswith("@") and expression not in _MACROS:
        raise InvalidInput("schedule", f"{excerpt(expression)} is no macro of cron", hint=", ".join(sorted(_MACROS)))


def _job_id(file: str, command: str, key: tuple[str, ...], *, index: int) -> str:
    base = _base_name(file)
    digest = blake2b("\0".join((base, *key, str(index))).encode("utf-8", "surrogatepass"), digest_size=5)
    words = re.findall(r"[A-Za-z0-9][A-Za-z0-9_.]*", _NOISE.sub("", command))
    slug = "-".join(words)[:48].strip("-._") or "command"
    place = "-".join(re.findall(r"[A-Za-z0-9_.]+", base))[:80].strip("-.") or "crontab"
    return f"{place}-{slug}-{digest.hexdigest()}"


def _base_name(file: str) -> str:
    """Return the file's own name, without the bytes and controls that no job could keep."""
    base = file.rstrip("/").rpartition("/")[2]
    return "".join(character if character.isprintable() else "?" for character in base)[:200]
