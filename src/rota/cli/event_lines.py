"""The face of `rota dev` where no terminal is: one line an event, as text or as JSON, flushed."""

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from rota.cli.board import Board, Line
from rota.cli.faces import (
    COLUMNS,
    Place,
    counts_to_json,
    ending_text,
    last_words,
    line_to_json,
    row_of,
    serving_text,
)
from rota.cli.output import cell, counted, plain, to_json
from rota.clock import Clock


class EventLines:
    """One line an event, as text or as JSON, flushed."""

    def __init__(self, board: Board, place: Place, clock: Clock, *, as_json: bool, stream: TextIO) -> None:
        self._board = board
        self._place = place
        self._clock = clock
        self._as_json = as_json
        self._stream = stream

    def started(self, seconds: float) -> None:
        place = self._place
        self._say(
            {"event": "started", "seconds": round(seconds, 3), "jobs": place.jobs, "data": place.data},
            f"{counted(place.jobs, 'job')} ready after {seconds:.1f} s; data in {place.data}",
        )

    def serving(self, url: str) -> None:
        self._say({"event": "serving", "url": url}, serving_text(url))

    def attempt(self, line: Line) -> None:
        if line.started_at is None and not self._as_json:
            return  # given back before it began, as all that waits here is at the end: the last words count it
        event = "attempt_started" if line.outcome is None else "attempt_ended"
        now = self._clock.now()
        values = [str(value) for value in (cell(part) for part in row_of(line, now=now))]
        named = dict(zip(COLUMNS, values, strict=True))
        text = f"{named['slot']} {named['job']} {named['state']} attempt {named['attempt']}"
        if line.outcome is None:
            text += f", start delay {named['start delay']}"
        else:
            text += f", took {named['duration']}" + (f": {line.message}" if line.message else "")
        self._say({"event": event, **line_to_json(line, now=now)}, text)

    def first_run(self, seconds: float) -> None:
        self._say(
            {"event": "first_run_done", "seconds": round(seconds, 3)}, f"first run done {seconds:.1f} s after the start"
        )

    def stopping(self, *, at_once: bool) -> None:
        drain = 0.0 if at_once else self._place.drain_seconds
        self._say(
            {"event": "stopping", "drain_seconds": drain}, "ending at once" if at_once else ending_text(self._place)
        )

    async def run(self, gone: asyncio.Event) -> None:
        await gone.wait()

    def stopped(self) -> None:
        self._say({"event": "stopped", **counts_to_json(self._board)}, last_words(self._board, self._place))

    def _say(self, document: dict[str, Any], text: str) -> None:
        print(to_json(document) if self._as_json else plain(text), file=self._stream, flush=True)


@contextmanager
def stream_apart(apart: bool) -> Iterator[TextIO]:
    """Lend standard output; `apart` sends what handlers print, children too, to standard error meanwhile."""
    if not apart:
        yield sys.stdout
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with os.fdopen(os.dup(kept), "w", encoding="utf-8") as stream:
            yield stream
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
