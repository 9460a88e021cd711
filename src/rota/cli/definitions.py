"""Job definitions as a command is given them: a JSON file with one job or a list, or a job id with options."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rota.cli.options import duration_of, instant_of, object_of
from rota.domain.job import DEFAULT_TENANT, Job, costs_of_one
from rota.domain.json_value import read_json
from rota.domain.misfire import CatchUp, FireOnce, Misfire, Skip, misfire_to_json
from rota.domain.schedule import Schedule, cron, every, once, schedule_to_json
from rota.errors import InvalidInput

FILE_LIMIT: Final = 64 * 1024 * 1024
"""The most bytes of a file of definitions."""

_CRON_OPTIONS: Final = ("tz", "dst", "seconds")
_PLAIN_OPTIONS: Final = (
    "pool", "priority", "max_attempts", "max_losses", "overlap", "max_concurrency", "concurrency_key",
    "key_concurrency", "pause_after", "description",
)  # fmt: skip
_DURATIONS: Final = ("timeout", "start_deadline", "jitter")


def read_definitions(source: str, options: Mapping[str, Any], *, tenant_id: str) -> list[Job]:
    """Return the jobs of a file ("-": standard input), or the one that `options` define under the id `source`.

    Raises InvalidInput; for a list the field begins with the job's place in it, such as "jobs[3].payload".
    """
    if options:
        return [_from_options(source, options, tenant_id=tenant_id)]
    if source != "-" and not source.endswith(".json") and not Path(source).exists():
        raise InvalidInput(
            "file",
            f"there is no file {source!r}",
            hint=f"to define a job of that id: rota job put {source} --cron ...",
        )
    document = _read_json(source)
    if isinstance(document, list):
        return [_job(entry, tenant_id, place=f"jobs[{index}].") for index, entry in enumerate(document)]
    return [_job(document, tenant_id, place="")]


def read_bytes(source: str, *, limit: int) -> bytes:
    """Return a file's bytes, "-" being standard input. Raises InvalidInput if it cannot be read or is too large."""
    try:
        if source == "-":
            data = sys.stdin.buffer.read(limit + 1)
        else:
            with open(source, "rb") as file:
                data = file.read(limit + 1)
    except OSError as error:
        raise InvalidInput("file", f"{source!r} cannot be read: {error.strerror or error}") from None
    if len(data) > limit:
        raise InvalidInput("file", f"{source!r} is larger than {limit} bytes", hint="split it")
    return data


def _read_json(source: str) -> Any:
    data = read_bytes(source, limit=FILE_LIMIT)
    try:
        return read_json(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InvalidInput("file", f"{source!r} is not JSON: {error}") from None


def _job(entry: object, tenant_id: str, *, place: str) -> Job:
    try:
        if isinstance(entry, dict) and tenant_id != DEFAULT_TENANT:
            entry = {"tenant_id": tenant_id, **entry}
        return Job.from_json(entry)
    except InvalidInput as error:
        raise type(error)(f"{place}{error.field}", error.reason, hint=error.hint) from None


def _from_options(job_id: str, options: Mapping[str, Any], *, tenant_id: str) -> Job:
    parts: dict[str, Any] = {name: options[name] for name in _PLAIN_OPTIONS if name in options}
    for name in _DURATIONS:
        if (duration := duration_of(options.get(name), field=name)) is not None:
            parts[name] = duration
    if "limits" in options:
        parts["limits"] = _limits(options["limits"])
    if "labels" in options:
        parts["labels"] = _labels(options["labels"])
    if (payload := object_of(options.get("payload"), field="payload")) is not None:
        parts["payload"] = payload
    if "misfire" in options:
        parts["misfire"] = _misfire(options["misfire"])
    handler = options.get("handler", job_id)
    return Job(job_id=job_id, handler=handler, schedule=_schedule(options), tenant_id=tenant_id, **parts)


def read_changes(options: Mapping[str, Any], unset: Sequence[str]) -> dict[str, Any]:
    """Return the merge patch of a job's definition that options name. Raises InvalidInput."""
    changes: dict[str, Any] = {name: options[name] for name in ("handler", *_PLAIN_OPTIONS) if name in options}
    for name in _DURATIONS:
        if (duration := duration_of(options.get(name), field=name)) is not None:
            changes[name] = duration.total_seconds()
    if "limits" in options:
        changes["limits"] = _limits(options["limits"])
    if "labels" in options:
        changes["labels"] = _labels(options["labels"])
    if (payload := object_of(options.get("payload"), field="payload")) is not None:
        changes["payload"] = payload
    if "misfire" in options:
        changes["misfire"] = misfire_to_json(_misfire(options["misfire"]))
    if schedule := _schedule_changes(options):
        changes["schedule"] = schedule
    for path in unset:
        _unset(changes, path)
    if not changes:
        raise InvalidInput("changes", "are missing", hint="name what is to change, such as --cron '0 3 * * *'")
    return changes


def _schedule_changes(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what options change of a schedule: an expression alone leaves the zone as it stands."""
    cron_options = {name: options[name] for name in _CRON_OPTIONS if name in options}
    if not {"cron", "every", "at"} & options.keys():
        return cron_options
    whole = _schedule(options)
    assert whole is not None, "one of its kinds is among the options"
    document = schedule_to_json(whole)
    if document["kind"] != "cron":
        return document
    return {"kind": "cron", "expression": document["expression"], **cron_options}


def _unset(changes: dict[str, Any], path: str) -> None:
    """Enter that a field, or a member of one such as `labels.team`, goes back to its default."""
    name, is_part, rest = path.partition(".")
    if is_part and rest:
        part = changes.setdefault(name, {})
        if isinstance(part, dict) and rest not in part:
            part[rest] = None
            return
    elif name and not is_part and name not in changes:
        changes[name] = None
        return
    raise InvalidInput("unset", f"{path!r} is set by another option, or is no field", hint="name it once")


def _labels(texts: Sequence[str]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for text in texts:
        name, is_pair, value = text.partition("=")
        if not is_pair or not name:
            raise InvalidInput("labels", f"{text!r} is no label", hint="such as team=billing")
        labels[name] = value
    return labels


def _schedule(options: Mapping[str, Any]) -> Schedule | None:
    kinds = [name for name in ("cron", "every", "at") if name in options]
    if len(kinds) > 1:
        raise InvalidInput("schedule", f"is given as {' and '.join(kinds)}", hint="give one of them")
    kind = kinds[0] if kinds else None
    stray = [name for name in _CRON_OPTIONS if name in options]
    if stray and kind != "cron":
        raise InvalidInput(stray[0], "belongs to --cron", hint="leave it out, or give --cron")
    match kind:
        case "cron":
            return cron(options["cron"], **{name: options[name] for name in _CRON_OPTIONS if name in options})
        case "every":
            return every(options["every"])
        case "at":
            at = instant_of(options["at"], field="at")
            assert at is not None, "it is among the options"
            return once(at)
    return None


def _limits(texts: Sequence[str]) -> dict[str, int]:
    """Read limits with what a run costs of each: NAME, or NAME=COST."""
    costs = costs_of_one([text.partition("=")[0] for text in texts])
    for text in texts:
        name, is_pair, cost = text.partition("=")
        if is_pair:
            if not (cost.isascii() and cost.isdigit() and len(cost) < 10):
                raise InvalidInput("limits", f"{text!r} is no limit with a cost", hint="such as crm=2")
            costs[name] = int(cost)
    return costs


def _misfire(text: str) -> Misfire:
    name, _, count = text.partition(":")
    if name == "catch_up" and count.isascii() and count.isdigit() and len(count) < 10:
        return CatchUp(int(count))
    if text == "skip":
        return Skip()
    if text == "fire_once":
        return FireOnce()
    raise InvalidInput("misfire", f"{text!r} is not a policy", hint="use skip, fire_once or catch_up:N")
