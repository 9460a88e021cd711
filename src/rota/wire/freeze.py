"""Documents of freezes."""

from datetime import datetime

from rota.wire.document import Document, Question


class FreezeQuestion(Question):
    reason: str = ""


class FreezeDocument(Document):
    """A freeze that holds: no new slots and no starts. `tenant_id` is * for everything."""

    tenant_id: str
    reason: str
    actor: str
    frozen_at: datetime


class FreezeList(Document):
    freezes: tuple[FreezeDocument, ...]
