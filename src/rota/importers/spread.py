"""Times that a scheduler elsewhere picks by chance or by a hash: cronie's `~`, Jenkins' `H`.

A slot must be the same on every node, so each becomes one time, taken from the job's id: spread over the jobs, and the
same wherever and whenever the file is read.
"""

import re
from hashlib import blake2b
from typing import Final

from rota.domain.expression import BOUNDS, FieldName

_FIELDS: Final = tuple(FieldName)[1:]
_CHANCE: Final = re.compile(r"(\d{0,2})~(\d{0,2})(?:/(\d{1,2}))?", re.ASCII)
_HASH: Final = re.compile(r"H(?:\((\d{1,2})-(\d{1,2})\))?(?:/(\d{1,2}))?", re.ASCII)
_LAST: Final = {FieldName.DAY: 28, FieldName.WEEKDAY: 6}
"""The last value of a field that comes every time: no month is without it, and no day of the week comes twice."""


def is_spread(expression: str) -> bool:
    """Tell whether five fields leave a time to chance or to a hash; whether they are well formed is not looked at."""
    return not expression.startswith("@") and re.search(r"~|(^|[ ,])H([/( ,]|$)", expression) is not None


def spread(expression: str, *, seed: str) -> str:
    """Return five fields with a time of its own for this seed; what is out of bounds stays, for cron to refuse."""
    parts = expression.split()
    if len(parts) != len(_FIELDS):
        return expression
    return " ".join(
        ",".join(_settled(name, item, seed=seed) for item in part.split(","))
        for name, part in zip(_FIELDS, parts, strict=True)
    )


def _settled(name: FieldName, item: str, *, seed: str) -> str:
    match = _CHANCE.fullmatch(item) or _HASH.fullmatch(item)
    if match is None:
        return item
    low, high = BOUNDS[name]
    high = _LAST.get(name, high)
    first, last = int(match[1] or low), int(match[2] or high)
    step = int(match[3] or 0)
    if not low <= first <= last <= BOUNDS[name][1] or (match[3] and not step):
        return item
    digest = int.from_bytes(blake2b(f"{seed}\0{name}".encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
    if not step:
        return str(first + digest % (last - first + 1))
    # Every step from a first one of its own.
    start = first + digest % min(step, last - first + 1)
    return f"{start}-{last}/{step}" if start < last else str(start)
