"""Which desk an address stands for."""

from rota.errors import InvalidInput
from rota.worker.desk import Desk
from rota.worker.local import LocalDesk


async def open_desk(url: str) -> Desk:
    """Return a desk with connections of its own. Raises InvalidInput, DatabaseUnavailable."""
    if url.startswith(("postgresql://", "postgres://")):
        return await LocalDesk.connect(url)
    raise InvalidInput("url", "is not the address of a database", hint="give postgresql://user@host/database")
