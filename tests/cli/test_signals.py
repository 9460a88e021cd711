"""Signals end what goes on until it is told to stop."""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest
import typer

from rota.cli.signals import STOP, StopSignals


@pytest.fixture(autouse=True)
def hangup() -> Iterator[None]:
    """The tests themselves may run under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", STOP)
async def test_each_signal_ends_a_start_with_its_exit_code_and_work_as_the_work_says(number: signal.Signals) -> None:
    async def start() -> None:
        with StopSignals():
            os.kill(os.getpid(), number)
            await asyncio.Event().wait()

    with pytest.raises(typer.Exit) as ended:
        await start()
    assert ended.value.exit_code == 128 + number
    stop = asyncio.Event()
    with StopSignals() as signals:
        signals.then(stop.set)
        os.kill(os.getpid(), number)
        await stop.wait()


async def test_a_hangup_that_nohup_has_turned_off_stays_so() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with StopSignals():
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
