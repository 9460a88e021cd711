"""The embedded PostgreSQL: a real server in a folder, private to its user, for one machine and for tests.

Layout of a data folder, all of it owned by the user and closed to everybody else:

    postgres/       the database cluster (0700), made by initdb in postgres.new-* and renamed into place when complete
    socket/         the server's socket (0700); elsewhere when this path is too long for a socket
    postgres.log    what the server says, moved to postgres.log.old when it has grown
    start.lock      held by whoever starts or stops the server
    users.lock      shared by all processes that use the server; who holds it alone may stop the server

`folders` makes and checks these, `binaries` finds and runs PostgreSQL's programs (through `launch`, as root also),
`cluster` makes the database, `postmaster` watches over one server process, and `server` puts them together.
"""

from rota.store.embedded.server import EmbeddedServer

__all__ = ["EmbeddedServer"]
