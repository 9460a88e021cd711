"""What an import gives: the jobs, what was refused, and what was read but deserves a look, each with its line.

Whatever the input, the lists stay bounded: past a limit, refusals and warnings are counted instead of kept, and
the last one says how many there were. Jobs past their limit are refused.
"""

from dataclasses import dataclass, field
from typing import Any, Final

from rota.domain.job import Job
from rota.domain.zones import zone, zone_keys
from rota.errors import InvalidInput

JOB_LIMIT: Final = 50_000
"""The most jobs that one file may hold."""
NOTE_LIMIT: Final = 5_000
"""The most refusals, and the most warnings, that are kept one by one."""
ZONE_HELP_LIMIT: Final = 100
"""The unknown zones of a file for which a similar name is looked up, which takes a millisecond each."""

_EXCERPT_LIMIT: Final = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A part of the file that was not imported, by its first line (from 1), and why."""

    file: str
    line: int
    reason: str

    def to_json(self) -> dict[str, Any]:
        return {"file": self.file, "line": self.line, "reason": self.reason}


@dataclass(frozen=True, slots=True, kw_only=True)
class Warning_:  # noqa: N801 - `Warning` is a builtin exception
    """Something that was imported, and may not mean what its author thinks."""

    file: str
    line: int
    text: str

    def to_json(self) -> dict[str, Any]:
        return {"file": self.file, "line": self.line, "text": self.text}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedJob:
    """A job with what is no part of its definition: where it stood, and whether it is paused there.

    The line is kept out of the job, so that a comment inserted above it changes no definition.
    """

    job: Job
    file: str
    line: int
    paused: bool = False
    former_id: str | None = None
    """The id that Rota 0.1 gave this very entry."""

    def to_json(self) -> dict[str, Any]:
        """Return the definition (see Job.to_json: durations in seconds) with `paused` and `source`."""
        return self.job.to_json() | {"paused": self.paused, "source": {"file": self.file, "line": self.line}}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportResult:
    """All that was found in a file, in the order of its lines."""

    imported: tuple[ImportedJob, ...] = ()
    refused: tuple[Refusal, ...] = ()
    warnings: tuple[Warning_, ...] = ()

    @property
    def jobs(self) -> list[Job]:
        return [entry.job for entry in self.imported]

    def to_json(self) -> dict[str, Any]:
        """Return {"jobs": [...], "refused": [{file, line, reason}], "warnings": [{file, line, text}]}."""
        return {
            "jobs": [entry.to_json() for entry in self.imported],
            "refused": [refusal.to_json() for refusal in self.refused],
            "warnings": [warning.to_json() for warning in self.warnings],
        }


@dataclass(slots=True)
class Harvest:
    """Gathers an ImportResult while a file is read; keeps its lists bounded and its job ids unique."""

    file: str
    _imported: dict[str, ImportedJob] = field(default_factory=dict)
    _refused: list[Refusal] = field(default_factory=list)
    _warnings: list[Warning_] = field(default_factory=list)
    _said: set[str] = field(default_factory=set)
    _refused_beyond: int = 0
    _warned_beyond: int = 0
    _unknown_zones: int = 0
    _first_of: dict[str, ImportedJob] = field(default_factory=dict)

    def add(self, job: Job, *, line: int, paused: bool = False, former_id: str | None = None) -> None:
        """Keep a job; one whose id stands in the file already, or that is one too many, is refused."""
        earlier = self._imported.get(job.job_id)
        if earlier is not None:
            self.refuse(line, f"job_id: {job.job_id!r} is taken by line {earlier.line} of this file")
        elif len(self._imported) >= JOB_LIMIT:
            self.refuse(line, f"the file holds more than {JOB_LIMIT} jobs (split it)")
        else:
            entry = ImportedJob(job=job, file=self.file, line=line, paused=paused, former_id=former_id)
            self._imported[job.job_id] = entry
            self._first_of.setdefault(job.handler, entry)

    def first_of(self, handler: str) -> ImportedJob | None:
        """Return the first job of this file that has this handler."""
        return self._first_of.get(handler)

    def refuse(self, line: int, reason: str) -> None:
        if len(self._refused) < NOTE_LIMIT:
            self._refused.append(Refusal(file=self.file, line=line, reason=reason))
        else:
            self._refused_beyond += 1

    def warn(self, line: int, text: str) -> None:
        if len(self._warnings) < NOTE_LIMIT:
            self._warnings.append(Warning_(file=self.file, line=line, text=text))
        else:
            self._warned_beyond += 1

    def warn_once(self, topic: str, line: int, text: str) -> None:
        """Warn the first time that the topic comes up in this file."""
        if topic not in self._said:
            self._said.add(topic)
            self.warn(line, text)

    def default_zone(self, tz: str | None) -> str:
        """Return the zone of what names none; None: UTC, of which is to be warned. Raises InvalidInput."""
        if tz is None:
            return "UTC"
        self._said.add("zone")  # who has chosen it need not be told
        self.check_zone(tz)
        return tz

    def check_zone(self, tz: str) -> None:
        """Raise InvalidInput for what is no IANA zone; cheap however many there are in the file."""
        if tz in zone_keys():
            return
        self._unknown_zones += 1
        if self._unknown_zones > ZONE_HELP_LIMIT:
            raise InvalidInput("tz", f"{excerpt(tz)} is not a zone")
        zone(tz)

    def result(self) -> ImportResult:
        refused = sorted(self._refused, key=lambda refusal: refusal.line)
        warnings = sorted(self._warnings, key=lambda warning: warning.line)
        if self._refused_beyond:
            text = f"and {self._refused_beyond} more parts of the file below this line were refused like these"
            refused.append(Refusal(file=self.file, line=refused[-1].line, reason=text))
        if self._warned_beyond:
            text = f"and {self._warned_beyond} more warnings below this line like these"
            warnings.append(Warning_(file=self.file, line=warnings[-1].line, text=text))
        return ImportResult(imported=tuple(self._imported.values()), refused=tuple(refused), warnings=tuple(warnings))


def excerpt(text: str) -> str:
    """Return the text quoted, on one line, cut to a length that fits a message."""
    return repr(text if len(text) <= _EXCERPT_LIMIT else text[:_EXCERPT_LIMIT] + "…")
