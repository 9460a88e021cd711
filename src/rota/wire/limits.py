"""Documents of flow control: limits, and pools' settings."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Strict, StrictInt

from rota.wire.document import Document, Question

LimitKind = Literal["downstream", "tenant"]


class LimitDocument(Document):
    """A limit and its use now; `tenant_id` `*` is the operator's.

    `in_use`: permits that runs hold. `waiting`: runs of the tenant that asks which wait for it, up to 100,000; the
    operator's question is about all. `tokens`: what is left of the rate's.
    """

    tenant_id: str
    name: str
    kind: LimitKind
    rate: float | None
    burst: int | None
    permits: int | None
    version: int
    created_at: datetime
    updated_at: datetime
    in_use: int | None
    waiting: int
    tokens: float | None


class LimitList(Document):
    limits: tuple[LimitDocument, ...]


class LimitQuestion(Question):
    """A rate in tokens a second with a burst, permits, or both."""

    kind: LimitKind = "downstream"
    rate: Annotated[float, Strict()] | None = None
    burst: StrictInt | None = None
    permits: StrictInt | None = None


class PoolDocument(Document):
    """A pool's settings: `ageing` is what a point of priority is worth, in seconds; `shed_above` null: any depth."""

    pool: str
    ageing: float
    shed_above: int | None
    updated_at: datetime


class PoolList(Document):
    pools: tuple[PoolDocument, ...]


class PoolQuestion(Question):
    """What is left out, or null, is as in every pool: 60 seconds, and any depth."""

    ageing: Annotated[float, Strict()] | None = None
    shed_above: StrictInt | None = None
