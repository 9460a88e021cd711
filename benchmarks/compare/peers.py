"""Who is compared. Versions are pinned here and nowhere else."""

from dataclasses import dataclass
from typing import Final, Literal

Runtime = Literal["own", "python", "node"]

QUEUE_MEASURES: Final = frozenset({"make", "drain", "pickup"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A job queue. `inside/NAME` (.py or .js) drives it; `own` ones live in Rota's environment.

    `remaining` counts the runs that have not ended; where there is none, the handler writes a line for each instead.
    """

    name: str
    runtime: Runtime
    measures: frozenset[str]
    pins: tuple[str, ...] = ()
    remaining: str | None = None

    @property
    def script(self) -> str:
        """The name of its module in `inside`."""
        return self.name.replace("-", "_")


ROTA: Final = Peer(
    name="rota",
    runtime="own",
    measures=QUEUE_MEASURES | {"every_second", "materialise", "claim"},
    remaining="SELECT (SELECT count(*) FROM rota.pending) + (SELECT count(*) FROM rota.lease)",
)
YARDSTICK: Final = Peer(
    name="yardstick",
    runtime="own",
    measures=frozenset({"drain", "materialise", "claim"}),
    remaining="SELECT (SELECT count(*) FROM yardstick.pending) + (SELECT count(*) FROM yardstick.lease)",
)
PEERS: Final = {
    peer.name: peer
    for peer in (
        ROTA,
        YARDSTICK,
        Peer(
            name="pgqueuer",
            runtime="python",
            measures=QUEUE_MEASURES | {"every_second"},
            pins=("pgqueuer==1.6.0", "asyncpg==0.32.0", "uvloop==0.23.0"),
            remaining="SELECT count(*) FROM pgqueuer",
        ),
        Peer(
            name="graphile-worker",
            runtime="node",
            measures=QUEUE_MEASURES,
            pins=("graphile-worker@0.17.3",),
            remaining="SELECT count(*) FROM graphile_worker._private_jobs",
        ),
        # The newest of each that runs on Node 20.
        Peer(
            name="pg-boss",
            runtime="node",
            measures=QUEUE_MEASURES,
            pins=("pg-boss@10.4.2",),
            remaining="SELECT count(*) FROM pgboss.job WHERE state < 'completed' AND name = 'noop'",
        ),
        # Its views count slower than its workers work, so its handler tells.
        Peer(name="awa", runtime="python", measures=QUEUE_MEASURES, pins=("awa-pg==0.6.9",)),
    )
}
