"""What the services return, as documents of the API. A document's fields carry the names of the view's own."""

from collections.abc import Iterable
from typing import Any, TypeVar

from rota.store.jobs import StoredJob
from rota.wire.document import Document
from rota.wire.jobs import JobDocument

D = TypeVar("D", bound=Document)


def document(kind: type[D], view: object) -> D:
    """Return a view as a document of the same fields; those that the view lacks get the document's defaults."""
    return kind.model_validate(view, from_attributes=True)


def documents(kind: type[D], views: Iterable[object]) -> tuple[D, ...]:
    """Return views as documents."""
    return tuple(document(kind, view) for view in views)


def extended(kind: type[D], view: object, **more: Any) -> D:
    """Return a view as a document that says more than the view does."""
    values = {name: getattr(view, name) for name in kind.model_fields if hasattr(view, name)}
    return kind.model_validate(values | more)


def job_document(stored: StoredJob, *, set_aside: str | None = None) -> JobDocument:
    """Return a job: its definition as a put takes it, and beside it where the job stands."""
    job = None if stored.job is None else stored.job.to_json()
    return extended(JobDocument, stored, job=job, set_aside=set_aside)


def listed_job(stored: StoredJob) -> JobDocument:
    """Return a job as a list shows it: no put takes its definition, since the payload in it is null."""
    job = None if stored.job is None else {**stored.job.to_json(), "payload": None}
    return extended(JobDocument, stored, job=job)
