"""Kubernetes CronJobs (batch/v1, one or many YAML documents, or a List) as jobs.

Rota starts no containers. Each CronJob becomes a job whose handler has the CronJob's name; a worker must register
that handler, and finds image, command, arguments and environment in the payload. What is left unsaid means what it
means to Kubernetes: backoffLimit 6, a backoff from 10 s to 6 min, no deadline, runs may overlap.
"""

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from rota.domain.cron import NEVER
from rota.domain.job import MAX_ATTEMPTS_LIMIT, Job, Overlap
from rota.domain.retry import RetryPolicy
from rota.domain.schedule import Schedule, cron, is_interval
from rota.errors import InvalidInput
from rota.importers.result import Harvest, ImportResult, excerpt
from rota.importers.yaml_documents import SIZE_LIMIT, Fields, plain, read_documents

NO_DEADLINE: Final = timedelta(days=1)
"""The timeout of an attempt when activeDeadlineSeconds is missing."""
BACKOFF: Final = RetryPolicy(initial=timedelta(seconds=10), factor=2.0, cap=timedelta(minutes=6), jitter=0.0)
DEFAULT_BACKOFF_LIMIT: Final = 6

_TEMPLATE: Final = re.compile(
    r"\{\{-? *(?:(?:if|else|end|range|with|include|template|define|tpl|toYaml)\b|[$(]|"
    r"\.(?:Values|Release|Chart|Files|Capabilities)\b)[^\n}]{0,200}"
)
"""What Helm's templates begin with. A command may hold other braces (`docker ps --format '{{.Names}}'`)."""
_CONTAINERS: Final = "spec.jobTemplate.spec.template.spec.containers"
_SOURCES: Final = {
    "job_id": "metadata.name",
    "handler": "metadata.name",
    "timeout": "spec.jobTemplate.spec.activeDeadlineSeconds",
    "start_deadline": "spec.startingDeadlineSeconds",
    "payload": _CONTAINERS,
}
"""Where a job's field comes from, for a refusal in the file's own words."""

_POLICIES: Final[dict[str, Overlap]] = {"Allow": "allow", "Forbid": "skip", "Replace": "replace"}


def read_kubernetes(data: bytes, *, file: str, tz: str | None = None) -> ImportResult:
    """Read CronJobs. `tz` is the zone of those without timeZone. Documents are refused one by one; no bytes raise.

    Raises InvalidSchedule only for a `tz` that is no zone.
    """
    harvest = Harvest(file)
    tz = harvest.default_zone(tz)
    if len(data) > SIZE_LIMIT:
        harvest.refuse(1, f"the file has {len(data)} bytes, and YAML is read up to {SIZE_LIMIT} (split it)")
        return harvest.result()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        harvest.refuse(data.count(b"\n", 0, error.start) + 1, "the file is not UTF-8")
        return harvest.result()
    template = _TEMPLATE.search(text)
    if template is not None:
        line = text.count("\n", 0, template.start()) + 1
        harvest.refuse(
            line, f"the file is a Helm template ({excerpt(template[0])}): import what `helm template` prints"
        )
        return harvest.result()
    for document in read_documents(text):
        if document.fault is not None:
            harvest.refuse(document.line, document.fault)
        else:
            _read_object(document.value, document.line, harvest, tz=tz)
    return harvest.result()


def _read_object(value: Any, line: int, harvest: Harvest, *, tz: str) -> None:
    if not isinstance(value, Fields):
        harvest.refuse(line, "the document is no Kubernetes object")
        return
    kind = value.values.get("kind")
    if kind in ("List", "CronJobList") and isinstance(value.values.get("items"), list):
        for item in value.values["items"]:
            _read_object(item, item.line if isinstance(item, Fields) else line, harvest, tz=tz)
    elif kind == "CronJob":
        source = _Reader(value)
        try:
            _read_cron_job(source, harvest, tz=tz)
        except InvalidInput as error:
            harvest.refuse(source.last_line, str(error))
    elif kind is None:
        harvest.refuse(value.line, "kind: is missing, so this is no Kubernetes object")
    else:
        harvest.warn(value.line, f"a {excerpt(str(kind))} is no CronJob and is passed over")


@dataclass(slots=True)
class _Reader:
    """Reads fields of an object by path; remembers the line of the last one, which is where a refusal belongs."""

    root: Fields
    last_line: int = 0

    def __post_init__(self) -> None:
        self.last_line = self.root.line

    def get(self, path: str) -> Any:
        """Return the field's value; None when it, or an object on the way, is missing or null."""
        value: Any = self.root
        for key in path.split("."):
            if value is None:
                return None
            if not isinstance(value, Fields):
                raise InvalidInput(path, f"cannot be found, since what should hold {key!r} is no object")
            self.last_line = value.lines.get(key, value.line)
            value = value.values.get(key)
        return value

    def text(self, path: str, *, required: bool = False) -> str | None:
        value = self.get(path)
        if value is None and not required:
            return None
        if not isinstance(value, str) or not value:
            raise InvalidInput(
                path, "is missing" if value is None else f"must be text, not {excerpt(str(plain(value)))}"
            )
        return value

    def whole(self, path: str, *, high: int = (1 << 31) - 1) -> int | None:
        value = self.get(path)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= high):
            raise InvalidInput(path, f"must be a whole number from 0 to {high}, not {excerpt(str(plain(value)))}")
        return value

    def flag(self, path: str) -> bool:
        value = self.get(path)
        if value is not None and not isinstance(value, bool):
            raise InvalidInput(path, f"must be true or false, not {excerpt(str(plain(value)))}")
        return bool(value)


def _read_cron_job(source: _Reader, harvest: Harvest, *, tz: str) -> None:
    schedule: Schedule | None
    try:
        schedule = _schedule(source, harvest, tz=tz)
    except InvalidInput as error:
        # A date that never comes is how a CronJob is kept for runs by hand.
        if not (NEVER in error.reason and source.flag("spec.suspend")):
            raise
        schedule = None
        harvest.warn(source.root.line, "it is suspended and its date never comes: a job on demand, without a schedule")
    schedule_line = source.last_line
    try:
        job = _job(source, schedule, harvest)
    except InvalidInput as error:
        if error.field not in _SOURCES:
            raise
        source.get(_SOURCES[error.field])
        raise InvalidInput(_SOURCES[error.field], error.reason, hint=error.hint) from error
    paused = source.flag("spec.suspend") and schedule is not None
    line = source.root.line
    harvest.add(job, line=line, paused=paused)
    harvest.warn(line, f"a worker must register the handler {excerpt(job.handler)}: Rota starts no containers itself")
    for warning in schedule.warnings if schedule is not None else ():
        harvest.warn(schedule_line, warning)
    _check_image(job, harvest, line=line)


def _check_image(job: Job, harvest: Harvest, *, line: int) -> None:
    """Warn of two jobs of one handler, as in two namespaces, that want different images."""
    first = harvest.first_of(job.handler)
    if first is not None and first.job.payload.get("image") != job.payload.get("image"):
        harvest.warn(
            line,
            f"the handler {excerpt(job.handler)} serves {excerpt(first.job.job_id)} too, with another image: it must"
            " look at the payload, or one of the two needs a name of its own",
        )


def _job(source: _Reader, schedule: Schedule | None, harvest: Harvest) -> Job:
    name = source.text("metadata.name", required=True)
    assert name is not None
    namespace = source.text("metadata.namespace")
    deadline = source.whole("spec.startingDeadlineSeconds")
    backoff = source.whole("spec.jobTemplate.spec.backoffLimit", high=MAX_ATTEMPTS_LIMIT - 1)
    limit = source.whole("spec.jobTemplate.spec.activeDeadlineSeconds")
    return Job(
        job_id=f"{namespace}/{name}" if namespace else name,
        handler=name,
        schedule=schedule,
        payload=_payload(source, harvest),
        max_attempts=(DEFAULT_BACKOFF_LIMIT if backoff is None else backoff) + 1,
        retry=BACKOFF,
        timeout=NO_DEADLINE if limit is None else timedelta(seconds=limit),
        overlap=_overlap(source),
        start_deadline=None if deadline is None else timedelta(seconds=deadline),
        labels={"imported-from": "kubernetes"},
    )


def _overlap(source: _Reader) -> Overlap:
    policy = source.text("spec.concurrencyPolicy") or "Allow"
    if policy not in _POLICIES:
        hint = ", ".join(_POLICIES)
        raise InvalidInput("spec.concurrencyPolicy", f"{excerpt(policy)} is no policy", hint=hint)
    return _POLICIES[policy]


def _schedule(source: _Reader, harvest: Harvest, *, tz: str) -> Schedule:
    zone = source.text("spec.timeZone")
    zone_line = source.last_line
    expression = source.text("spec.schedule", required=True)
    assert expression is not None
    first, _, rest = expression.strip().partition(" ")
    if first.startswith(("TZ=", "CRON_TZ=")):
        if zone is not None:
            raise InvalidInput("spec.schedule", "names a zone, and so does spec.timeZone", hint="keep spec.timeZone")
        zone, expression, zone_line = first.partition("=")[2], rest, source.last_line
    if zone is None:
        text = f"no timeZone is given: times are read in {tz}; Kubernetes takes the controller's own zone, mostly UTC"
        harvest.warn_once("zone", source.last_line, text)
    # Kubernetes takes "?" for "*" in every field.
    expression = " ".join("*" if part == "?" else part for part in expression.split())
    try:
        harvest.check_zone(tz if zone is None else zone)
        given = "UTC" if zone is None and is_interval(expression) else zone
        return cron(expression, tz=tz if given is None else given)
    except InvalidInput as error:
        if error.field == "tz":
            source.last_line = zone_line
            raise InvalidInput("spec.timeZone", error.reason, hint=error.hint) from error
        raise InvalidInput("spec.schedule", error.reason, hint=error.hint) from error


def _payload(source: _Reader, harvest: Harvest) -> dict[str, Any]:
    containers = source.get(_CONTAINERS)
    line = source.last_line
    if not isinstance(containers, list) or not containers or not isinstance(containers[0], Fields):
        raise InvalidInput(_CONTAINERS, "is missing, or no list of objects")
    container = _Reader(containers[0])
    if len(containers) > 1:
        harvest.warn(line, f"of {len(containers)} containers only the first goes into the payload")
    return {
        "image": container.text("image") or "",
        "command": plain(container.get("command") or []),
        "args": plain(container.get("args") or []),
        "env": _environment(container, harvest),
    }


def _environment(container: _Reader, harvest: Harvest) -> dict[str, str]:
    """Return the variables with a value; one that is taken from elsewhere is left out, with a warning."""
    found: dict[str, str] = {}
    entries = container.get("env") or []
    if not isinstance(entries, list) or not all(isinstance(entry, Fields) for entry in entries):
        raise InvalidInput("env", "must be a list of objects")
    for entry in entries:
        fields = _Reader(entry)
        name = fields.text("name", required=True)
        assert name is not None
        if fields.get("valueFrom") is not None:
            harvest.warn(fields.last_line, f"the variable {excerpt(name)} comes from a secret or field and is left out")
        else:
            found[name] = fields.text("value") or ""
    return found
