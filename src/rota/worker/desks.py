"""Which desk an address stands for."""

from rota.errors import InvalidInput
from rota.worker.desk import Desk


def load(url: str) -> None:
    """Import what a desk at this address needs: on a busy host that takes longer than a lease may last."""
    if url.startswith(("http://", "https://")):
        import rota.client
        import rota.worker.rest
    else:
        import rota.worker.local  # noqa: F401 - for its own sake


async def open_desk(url: str, token: str | None = None, tenant: str | None = None, *, insecure: bool = False) -> Desk:
    """Return a desk with connections of its own. All but the URL is for the address of an API, as `rota.Client` has it.

    Raises InvalidInput, DatabaseUnavailable.
    """
    # Imported when known: the heart of a worker over HTTP needs no database driver, that of another no HTTP.
    if url.startswith(("postgresql://", "postgres://")):
        from rota.worker.local import LocalDesk

        return await LocalDesk.connect(url)
    if url.startswith(("http://", "https://")):
        from rota.client import Client
        from rota.worker.rest import RestDesk

        return RestDesk(Client(url, token, tenant=tenant, insecure=insecure), owns_client=True)
    raise InvalidInput(
        "url", "is the address of no database and no API", hint="give postgresql://user@host/database or https://host"
    )
