"""Cancellations, heard at once: what a worker would learn with its next renewal, it learns within about a second."""

from typing import Final

from rota.clock import Clock
from rota.worker.desk import Desk, HearsCancels
from rota.worker.heart import Heart

CANCELS_INTERVAL: Final = 0.5
"""Seconds between two renewals that are brought forward, however many runs are cancelled."""


async def hear_cancels(desk: Desk, heart: Heart, clock: Clock) -> None:
    """Bring renewals forward when runs are to be cancelled: they say whether one of them is ours. Until cancelled.

    Returns at once for a desk that hears of none: its worker learns it with the renewals as they come.
    """
    if not isinstance(desk, HearsCancels):
        return
    while True:
        await desk.wait_for_cancel()
        heart.hasten()
        await clock.sleep(CANCELS_INTERVAL)
