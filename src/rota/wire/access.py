"""Documents of people and tenants: tokens, quotas, and the log of what was changed by whom."""

from datetime import datetime
from typing import Any, Final, Literal, get_args

from pydantic import AwareDatetime, Field, StrictInt

from rota.wire.document import Document, Many, Question

Scope = Literal["read", "jobs:write", "runs:operate", "worker", "admin"]
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)

OPERATOR: Final = "*"
"""The tenant of an operator's token: it acts for any tenant, and sees what belongs to none."""


class MeDocument(Document):
    """Who asks, as the server sees it: whose rows this is about, and what is allowed."""

    tenant_id: str
    scopes: tuple[Scope, ...]
    actor: str
    is_operator: bool


class TokenDocument(Document):
    """A token without its secret, which nobody keeps."""

    token_id: str
    tenant_id: str
    name: str
    scopes: tuple[Scope, ...]
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    parent_id: str | None = None
    """The token that made it, with which it ends."""


class NewToken(TokenDocument):
    """A token at its making: `token` is shown this once."""

    token: str


class TokenQuestion(Question):
    name: str = Field(default="", max_length=200)
    scopes: Many[Scope] = Field(min_length=1)
    expires_at: AwareDatetime | None = None


class TokenList(Document):
    tokens: tuple[TokenDocument, ...]
    next_cursor: str | None = None


class TenantDocument(Document):
    """Quotas, null for the installation's own, and the weight: its share of a pool beside others'."""

    tenant_id: str
    max_jobs: int | None
    max_payload_bytes: int | None
    calls_per_second: float | None
    weight: int = 1
    created_at: datetime
    updated_at: datetime


class TenantQuestion(Question):
    max_jobs: int | None = Field(default=None, ge=0, le=100_000_000)
    max_payload_bytes: int | None = Field(default=None, ge=2, le=262_144)
    calls_per_second: float | None = Field(default=None, gt=0, le=1e6)
    weight: StrictInt = Field(default=1, ge=1, le=100)


class TenantList(Document):
    tenants: tuple[TenantDocument, ...]


class SigningSecret(Document):
    """The key of the Standard Webhooks scheme, whsec_..., that signs the calls of this tenant's HTTP targets.

    After a rotation the one before, `former`, signs them too until `former_until`.
    """

    secret: str
    former: str | None = None
    former_until: datetime | None = None


class RotateQuestion(Question):
    """How long the present key signs beside the new one, in seconds."""

    keep_seconds: float = Field(default=86_400, ge=0, le=30 * 86_400)


class AuditDocument(Document):
    at: datetime
    actor: str
    action: str
    subject: str
    before: Any
    after: Any


class AuditPage(Document):
    entries: tuple[AuditDocument, ...]
    next_cursor: str | None
