"""`rota workers`, `rota shards` and `rota stats`: the cluster as it is now."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from rota.cli.options import Call, command
from rota.cli.output import Table
from rota.cli.views import values_of, workers_table

if TYPE_CHECKING:
    from rota.wire.work import ShardDocument


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Look at live workers, and let them leave.", no_args_is_help=True)
    command(group, "list", over_http=True)(list_)
    command(group, "drain", over_http=True)(drain)
    app.add_typer(group, name="workers", rich_help_panel="Look")
    command(app, "shards", without=("tenant",), over_http=True, panel="Look")(shards)
    command(app, "stats", over_http=True, panel="Look")(stats)


async def list_(call: Call) -> None:
    """List live worker processes: an operator sees all, a tenant its own."""
    async with call.control() as control:
        found = await control.workers()
    call.out.answer(values_of(found), workers_table(found.workers) if found.workers else "no live workers")


async def drain(
    call: Call, worker_id: Annotated[str, typer.Argument(metavar="WORKER", help="The worker's name.")]
) -> None:
    """Let a worker claim no more; what it runs ends by itself."""
    async with call.control() as control:
        found = await control.drain_worker(worker_id)
    call.out.answer(values_of(found), f"{worker_id!r} claims no more", workers_table(found.workers))


async def shards(call: Call) -> None:
    """List which scheduler owns which shards, and until when."""
    async with call.control() as control:
        found = await control.shards()
    owners: dict[str | None, list[ShardDocument]] = {}
    for one in found.shards:
        owners.setdefault(one.owner, []).append(one)
    rows = [
        (owner, len(owned), _ranges([one.shard for one in owned]), min(one.expires_at for one in owned))
        for owner, owned in sorted(owners.items(), key=lambda entry: entry[0] or "")
    ]
    table = Table(columns=("owner", "shards", "which", "until"), rows=rows, right=frozenset({"shards"}))
    call.out.answer(values_of(found), table)


def _ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers with neighbours folded: `0-31, 40`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ", ".join("-".join(str(end) for end in part) for part in parts)


async def stats(call: Call) -> None:
    """Show how much waits, runs and is dead."""
    async with call.control() as control:
        found = await control.stats()
    counts = [(name, getattr(found, name)) for name in ("jobs", "running", "dead", "workers")]
    facts = Table(columns=("what", "how many"), rows=counts, right=frozenset({"how many"}))
    rows = [(depth.pool, depth.gate, depth.runs, depth.oldest) for depth in found.waiting]
    waiting = Table(columns=("pool", "gate", "runs", "oldest"), rows=rows, title="waiting", right=frozenset({"runs"}))
    call.out.answer(values_of(found), facts, waiting if rows else "nothing waits")
