"""Which kind of schedule file some bytes are, told from what is in them; the name only settles what they leave open."""

import re
from datetime import datetime
from enum import StrEnum
from typing import Final

from rota.importers.airflow import is_heading, read_airflow
from rota.importers.crontab import looks_like_cron, read_crontab
from rota.importers.kubernetes import read_kubernetes
from rota.importers.result import Harvest, ImportResult
from rota.importers.systemd import read_directive, read_systemd

FILE_LIMIT: Final = 10 * 1024 * 1024
"""The most bytes of a file of any kind."""
LINES_LIMIT: Final = 100_000
SAMPLE_LIMIT: Final = 64 * 1024
"""The bytes at the start of a file that tell its kind."""

_OBJECT: Final = re.compile(r"""^[ \t{-]*["']?(apiVersion|kind)["']?[ \t]*:""")
_UTF16: Final = (b"\xff\xfe", b"\xfe\xff")


class Kind(StrEnum):
    CRONTAB = "crontab"
    KUBERNETES = "kubernetes"
    AIRFLOW = "airflow"
    SYSTEMD = "systemd"


def read_schedules(
    data: bytes, *, file: str, now: datetime, tz: str | None = None, system: bool | None = None
) -> ImportResult:
    """Read a schedule file of any known kind as jobs. No bytes raise: what cannot be read is refused with its line.

    `tz` is the zone of what names none (None: UTC, with a warning); `system` says whether a crontab has a user column
    (None: find out); `now`, aware, only serves warnings. Raises InvalidSchedule only for a `tz` that is no zone.
    """
    harvest = Harvest(file)
    if len(data) > FILE_LIMIT:
        harvest.refuse(1, f"the file has {len(data)} bytes, and at most {FILE_LIMIT} are read (split it)")
        return harvest.result()
    if (lines := data.count(b"\n")) > LINES_LIMIT:
        harvest.refuse(1, f"the file has {lines} lines, and at most {LINES_LIMIT} are read (split it)")
        return harvest.result()
    if data.startswith(_UTF16):
        harvest.refuse(1, "the file is UTF-16, as its byte order mark says (save it as UTF-8 without one)")
        return harvest.result()
    if not data.strip():
        harvest.warn(1, "the file is empty")
        return harvest.result()
    match kind_of(data, file=file):
        case Kind.KUBERNETES:
            return read_kubernetes(data, file=file, tz=tz)
        case Kind.AIRFLOW:
            return read_airflow(data, file=file, tz=tz, now=now)
        case Kind.SYSTEMD:
            return read_systemd(data, file=file, tz=tz)
        case Kind.CRONTAB:
            return read_crontab(data, file=file, tz=tz, system=system)


def kind_of(data: bytes, *, file: str) -> Kind:
    """Tell the kind. One entry that cron could read makes a crontab, except in a file of Kubernetes objects."""
    text = data[:SAMPLE_LIMIT].decode("utf-8", errors="replace").removeprefix("\ufeff")
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    lines = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if lines and is_heading(lines[0]):
        return Kind.AIRFLOW
    fields = {match[1] for line in lines if (match := _OBJECT.match(line))}
    if len(fields) == 2:
        return Kind.KUBERNETES
    if any(looks_like_cron(line) for line in lines):
        return Kind.CRONTAB
    if fields:
        return Kind.KUBERNETES
    if any(read_directive(line) for line in lines):
        return Kind.SYSTEMD
    name = file.lower()
    if name.endswith((".yaml", ".yml", ".json")):
        return Kind.KUBERNETES
    return Kind.SYSTEMD if name.endswith(".timer") else Kind.CRONTAB
