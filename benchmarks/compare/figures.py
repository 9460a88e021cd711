"""Figures of peers, and their table: medians over the rounds, and how far Rota is ahead of the others."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from benchmarks.compare.peers import PEERS, ROTA, YARDSTICK


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One value of one round."""

    peer: str
    measure: str
    value: float


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table. Of most measures more is better; of the others, less."""

    title: str
    measure: str
    less_is_better: bool = False


ROWS: Final = (
    Row("drain, 1 worker process, runs/s", "drain_1.rate"),
    Row("drain, 2 worker processes, runs/s", "drain_2.rate"),
    Row("2 worker processes against 1, ×", "drain_2.gain"),
    Row("worker CPU a run, ms", "drain_1.worker_cpu", True),
    Row("database CPU a run, ms", "drain_1.database_cpu", True),
    Row("worker CPU a run, 2 processes, ms", "drain_2.worker_cpu", True),
    Row("database CPU a run, 2 processes, ms", "drain_2.database_cpu", True),
    Row("WAL of a drained run, bytes", "drain_1.wal", True),
    Row("pick-up p50, ms", "pickup.p50", True),
    Row("pick-up p99, ms", "pickup.p99", True),
    Row("made one by one, runs/s", "make.one"),
    Row("made in bulk, runs/s", "make.many"),
    Row("1,000 jobs every second: fired, %", "every_second.fired"),
    Row("the same: start delay p50, ms", "every_second.p50", True),
    Row("the same: start delay p99, ms", "every_second.p99", True),
    Row("materialised, runs/s", "materialise.rate"),
    Row("WAL of a materialised run, bytes", "materialise.wal", True),
    Row("claim of 1, p50, ms", "claim.batch_1_p50", True),
    Row("claim of 1, p99, ms", "claim.batch_1_p99", True),
    Row("claim of 50, p50, ms", "claim.batch_50_p50", True),
    Row("claim of 50, p99, ms", "claim.batch_50_p99", True),
)


def table(figures: Sequence[Figure]) -> str:
    """Return a Markdown table of the medians, with ratios: above 1 Rota is ahead."""
    middles = medians(figures)
    measured = {figure.peer for figure in figures}
    columns = [name for name in (ROTA.name, *others_of(PEERS), YARDSTICK.name) if name in measured]
    lines = [
        ["", *columns, "Rota to the best peer", "Rota to the yardstick"],
        ["---"] * (len(columns) + 3),
    ]
    for row in ROWS:
        values = {name: middles[name, row.measure] for name in columns if (name, row.measure) in middles}
        if not values:
            continue
        best = best_peer(row, values)
        cells = [shown(values[name]) if name in values else "–" for name in columns]
        to_best = _ratio(row, values, best)
        if to_best != "–":
            to_best += f" ({best})"
        lines.append([row.title, *cells, to_best, _ratio(row, values, YARDSTICK.name)])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def medians(figures: Iterable[Figure]) -> dict[tuple[str, str], float]:
    """Return the median of each peer's measure over the rounds."""
    values: dict[tuple[str, str], list[float]] = {}
    for figure in figures:
        values.setdefault((figure.peer, figure.measure), []).append(figure.value)
    return {key: median(each) for key, each in values.items()}


def beside(figures: Iterable[Figure]) -> float | None:
    """Return how many cores other work on the machine took during the drains, at the median; None without drains."""
    shares = [figure.value for figure in figures if figure.measure.endswith(".others")]
    return median(shares) if shares else None


def others_of(names: Iterable[str]) -> list[str]:
    """Return the peers among the names; the yardstick is none."""
    return [name for name in names if name not in (ROTA.name, YARDSTICK.name)]


def best_peer(row: Row, values: Mapping[str, float]) -> str | None:
    """Return who is best among the peers."""
    peers = others_of(values)
    if not peers:
        return None
    return min(peers, key=values.__getitem__) if row.less_is_better else max(peers, key=values.__getitem__)


def ahead(row: Row, mine: float, other: float) -> float | None:
    """Return how far `mine` is ahead of the other, as a factor: below 1 it is behind. None where one of them is 0."""
    if mine <= 0 or other <= 0:
        return None
    return other / mine if row.less_is_better else mine / other


def shown(value: float) -> str:
    """Return a value with as many digits as mean something."""
    if value >= 1000:
        return f"{value:,.0f}"
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def _ratio(row: Row, values: Mapping[str, float], other: str | None) -> str:
    if other is None or other not in values or ROTA.name not in values:
        return "–"
    ratio = ahead(row, values[ROTA.name], values[other])
    return "–" if ratio is None else f"{ratio:.2f}"
