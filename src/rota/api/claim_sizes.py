"""Claims are bounded in bytes as well as in runs: a hundred runs may have twenty megabytes of payload."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from rota.api.recent import Recent
from rota.wire.work import ClaimQuestion

CLAIM_BYTES: Final = 4 << 20
"""The most bytes of a claim's answer, unless its first run alone has more."""
SIZES_KEPT: Final = 10_000


class ClaimSizes:
    """How many runs of a pool travel in one answer, as the last answer showed: payloads of one pool are alike."""

    def __init__(self) -> None:
        self._runs: Recent[tuple[str | None, str], int] = Recent(SIZES_KEPT)

    def limit(self, tenant_id: str | None, question: ClaimQuestion) -> int:
        """Return how many runs to claim."""
        return min(question.limit, self._runs.get((tenant_id, question.pool)) or question.limit)

    def carried(self, tenant_id: str | None, question: ClaimQuestion, sizes: Sequence[int]) -> int:
        """Return how many of the runs of these sizes the answer carries, and remember it for the next claim."""
        if not sizes:
            return 0
        key, likely = (tenant_id, question.pool), max(1, CLAIM_BYTES * len(sizes) // max(1, sum(sizes)))
        if likely < question.limit:
            self._runs.put(key, likely)
        else:
            self._runs.forget(key)
        whole = list(accumulate(sizes))
        return max(1, sum(size <= CLAIM_BYTES for size in whole))
