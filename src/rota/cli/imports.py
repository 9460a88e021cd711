"""`rota import crontab`: schedule files of other systems as jobs. What is refused keeps nothing else from going in."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import uuid4

import typer

from rota.cli.boundary import NO
from rota.cli.definitions import read_bytes
from rota.cli.job_steering import delete_many
from rota.cli.options import Call, command
from rota.cli.output import Table, counted
from rota.cli.views import change_word
from rota.domain.job import DEFAULT_TENANT, check_name
from rota.errors import InvalidInput
from rota.extras import require
from rota.worker.handlers import SHELL

if TYPE_CHECKING:
    from rota.assembly import Rota
    from rota.importers.result import ImportedJob, Refusal, Warning_
    from rota.services.definitions import PutResult


IMPORTED: Final = "imported-from=crontab"
JOBS_AT_ONCE: Final = 1000
FOLDER_LIMIT: Final = 10_000
"""The most files of a folder."""
_CRON_D_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(slots=True)
class Found:
    """What all files together gave."""

    imported: "dict[str, ImportedJob]" = field(default_factory=dict)
    refused: "list[Refusal]" = field(default_factory=list)
    warnings: "list[Warning_]" = field(default_factory=list)

    def notes(self) -> dict[str, Any]:
        return {
            "refused": [refusal.to_json() for refusal in self.refused],
            "warnings": [warning.to_json() for warning in self.warnings],
        }


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Take jobs over from other schedulers.", no_args_is_help=True)
    command(group, "crontab")(crontab)
    command(group, "undo", over_http=True)(undo)
    app.add_typer(group, name="import", rich_help_panel="Jobs")


async def crontab(
    call: Call,
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Files to read; - is standard input.")],
    tz: Annotated[
        str | None, typer.Option(help="The zone of times that name none. (default: UTC)", show_default=False)
    ] = None,
    system: Annotated[
        bool | None,
        typer.Option("--system/--user", help="With or without a user column. (default: find out)", show_default=False),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done; needs no database.")] = False,
    pool: Annotated[str | None, typer.Option(help="The pool of the jobs. (default: default)")] = None,
) -> int | None:
    """Make jobs of crontabs, Kubernetes CronJobs, DAG tables and systemd timers. Run again, it changes nothing.

    Lines that cannot be jobs are refused one by one with file, line and reason; then the exit code is 1.
    """
    if pool is not None:
        check_name("pool", pool)
    require("rota import", "server")
    found = _read(call, files, tz=tz, system=system, pool=pool)
    if dry_run:
        document = {"jobs": [entry.to_json() for entry in found.imported.values()], **found.notes()}
        _answer(call, found, document, f"{counted(len(found.imported), 'job')} would be imported", _preview(found))
    else:
        source = f"import-{call.clock.now():%Y%m%dT%H%M%S}-{uuid4().hex[:6]}"
        async with call.opened() as rota:
            replaced = await _replace_former(rota, found)
            results, paused = await _put(rota, found, source)
            await _look_for_workers(rota, found)
        document, text, table = _done(found, results, paused)
        if replaced:
            document["replaced"] = replaced
            text += f"\n{counted(len(replaced), 'job')} of an earlier import under another id went for these"
        if any(result.created for result in results):
            document["source"] = source
            text += f"\n`rota import undo {source}` deletes the jobs that were created"
        _answer(call, found, document, text, table)
    return NO if found.refused else None


async def undo(
    call: Call,
    source: Annotated[str, typer.Argument(help="The import, as it named itself.", show_default=False)],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> int | None:
    """Delete the jobs that an import created, and cancel their waiting runs; what it found there stays."""
    from rota.wire.jobs import JobFilterQuestion

    if not source.startswith("import-"):
        raise InvalidInput("source", f"{source!r} is no import", hint="`rota job show` tells a job's source")
    async with call.control() as control:
        return await delete_many(call, control, JobFilterQuestion(owner="operator", source=source), yes=yes)


def _read(call: Call, files: Sequence[str], *, tz: str | None, system: bool | None, pool: str | None) -> Found:
    from rota.importers.detect import FILE_LIMIT, read_schedules
    from rota.importers.result import Refusal

    found = Found()
    now, tenant_id = call.clock.now(), call.tenant_id
    changes = {"pool": pool} if pool is not None else {}
    if tenant_id != DEFAULT_TENANT:
        changes["tenant_id"] = tenant_id
    for file in _files(files, found):
        name = "stdin" if file == "-" else file
        try:
            data = read_bytes(file, limit=FILE_LIMIT)
        except InvalidInput as error:
            # Line 0 is the file itself.
            found.refused.append(Refusal(file=name, line=0, reason=str(error)))
            continue
        result = read_schedules(data, file=name, now=now, tz=tz, system=system)
        found.refused += result.refused
        found.warnings += result.warnings
        for entry in result.imported:
            earlier = found.imported.get(entry.job.job_id)
            if earlier is None:
                found.imported[entry.job.job_id] = _edited(entry, changes)
            else:
                reason = f"job_id: {entry.job.job_id!r} is taken by line {earlier.line} of {earlier.file}"
                found.refused.append(Refusal(file=name, line=entry.line, reason=reason))
    return found


def _files(given: Sequence[str], found: Found) -> Iterator[str]:
    """Yield the files, those of a folder in its place; those of a cron.d that cron passes over are passed over."""
    from rota.importers.result import Refusal, Warning_

    for place in given:
        try:
            inside = sorted(entry.path for entry in os.scandir(place)) if os.path.isdir(place) else [place]
        except OSError as error:
            found.refused.append(Refusal(file=place, line=0, reason=f"cannot be read: {error.strerror or error}"))
            continue
        if len(inside) > FOLDER_LIMIT:
            reason = f"the folder holds {len(inside)} files, and at most {FOLDER_LIMIT} are read"
            found.refused.append(Refusal(file=place, line=0, reason=reason))
            continue
        for file in inside:
            folder, name = os.path.split(os.path.abspath(file))
            if os.path.isdir(file):
                continue
            if os.path.basename(folder) == "cron.d" and not _CRON_D_NAME.fullmatch(name):
                text = "passed over, as cron does in cron.d: a name has letters, digits, - and _ only"
                found.warnings.append(Warning_(file=file, line=0, text=text))
                continue
            yield file


def _edited(entry: "ImportedJob", changes: dict[str, str]) -> "ImportedJob":
    from dataclasses import replace

    return replace(entry, job=entry.job.edited(**changes)) if changes else entry


async def _put(rota: "Rota", found: Found, source: str) -> "tuple[list[PutResult], list[str]]":
    """Put the jobs; returns the results and the ids of those paused: new ones that were suspended where they were."""
    entries = found.imported.values()
    suspended = {entry.job.job_id: f"suspended in {entry.file}, line {entry.line}" for entry in entries if entry.paused}
    results = await rota.definitions.put([entry.job for entry in entries], pause_new=suspended, source=source)
    return results, [result.job_id for result in results if result.created and result.job_id in suspended]


async def _replace_former(rota: "Rota", found: Found) -> list[str]:
    """Delete the jobs that Rota 0.1 made of these very entries under ids of their own: both would fire."""
    former = {
        (entry.job.tenant_id, entry.former_id) for entry in found.imported.values() if entry.former_id is not None
    } - {(entry.job.tenant_id, entry.job.job_id) for entry in found.imported.values()}
    replaced = []
    for tenant_id in sorted({tenant_id for tenant_id, _ in former}):
        after = ""
        while page := await rota.definitions.page(tenant_id=tenant_id, label=IMPORTED, after=after, limit=JOBS_AT_ONCE):
            after = page[-1].job_id
            for stored in page:
                if (tenant_id, stored.job_id) in former:
                    await rota.definitions.delete(stored.job_id, tenant_id=tenant_id)
                    replaced.append(stored.job_id)
    return replaced


async def _look_for_workers(rota: "Rota", found: Found) -> None:
    """Warn of shell jobs that no live worker would run."""
    from rota.importers.result import Warning_

    wanted = {
        (entry.job.pool, entry.job.tenant_id): entry for entry in found.imported.values() if entry.job.handler == SHELL
    }
    shells = [worker for worker in await rota.fleet.workers(tenant_id=None) if SHELL in worker.handlers]
    for (pool, tenant_id), entry in sorted(wanted.items()):
        if any(worker.pool == pool and worker.tenant_id in (None, tenant_id) for worker in shells):
            continue
        start = f"rota worker --allow-shell {tenant_id}"
        text = f"no live worker of the pool {pool!r} runs shell jobs: start one with `{start}`"
        found.warnings.append(Warning_(file=entry.file, line=0, text=text))


def _done(
    found: Found, results: "Sequence[PutResult]", paused: Sequence[str]
) -> tuple[dict[str, Any], str, Table | None]:
    words = {result.job_id: change_word(result) for result in results}
    counts = {word: list(words.values()).count(word) for word in ("created", "changed", "unchanged")}
    counts |= {"paused": len(paused)}
    jobs = [
        {
            "job_id": result.job_id,
            "version": result.version,
            "change": words[result.job_id],
            "next_slot": result.next_slot,
            "source": {"file": found.imported[result.job_id].file, "line": found.imported[result.job_id].line},
        }
        for result in results
    ]
    rows = [
        (result.job_id, words[result.job_id], result.next_slot, _place(found.imported[result.job_id]))
        for result in results
        if result.changed
    ]
    table = Table(columns=("job", "change", "next slot", "from"), rows=rows) if rows else None
    text = ", ".join(f"{count} {word}" for word, count in counts.items())
    return {"jobs": jobs, **counts, **found.notes()}, f"{text}, {len(found.refused)} refused", table


def _preview(found: Found) -> Table | None:
    rows = [
        (
            entry.job.job_id,
            "on demand" if entry.job.schedule is None else entry.job.schedule.describe(),
            entry.job.payload["command"] if entry.job.handler == SHELL else entry.job.handler,
            _place(entry),
        )
        for entry in found.imported.values()
    ]
    return Table(columns=("job", "schedule", "runs", "from"), rows=rows) if rows else None


def _answer(call: Call, found: Found, document: dict[str, Any], text: str, table: Table | None) -> None:
    call.out.answer(document, *([table] if table is not None else []), text)
    for warning in found.warnings:
        call.out.warn(f"{_line(warning.file, warning.line)}: warning: {warning.text}")
    for refusal in found.refused:
        call.out.warn(f"{_line(refusal.file, refusal.line)}: refused: {refusal.reason}")


def _line(file: str, line: int) -> str:
    """Return where something stands; line 0 is the whole file."""
    return f"{file}:{line}" if line else file


def _place(entry: "ImportedJob") -> str:
    return f"{entry.file}:{entry.line}"
