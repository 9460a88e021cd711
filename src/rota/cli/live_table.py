"""The face of `rota dev` in a terminal: the latest attempts and a footer, drawn again and again in their place."""

import asyncio
from datetime import UTC, datetime
from typing import Any, Final

from rota.cli.board import Board, Line
from rota.cli.faces import COLUMNS, Place, counts_texts, ending_text, last_words, row_of, serving_text
from rota.cli.output import cell, console, counted
from rota.clock import Clock

REFRESH: Final = 0.25
"""Seconds between two looks of the live table."""
FRAME: Final = 11
"""Lines of the terminal that are not attempts: two notes, the head in its frame (4), the footer (4), the cursor."""
NARROW: Final = 100
"""Columns of the terminal under which LESSER are left out."""
LESSER: Final = frozenset({"attempt", "start delay"})
NUMBERS: Final = frozenset({"attempt", "start delay", "duration"})
ELASTIC: Final = frozenset({"job", "error"})
"""What is cut short where the terminal is too narrow; the other columns are always whole."""
_COLOURS: Final = {"running": "cyan", "succeeded": "green", "dead": "bold red", "pending": "yellow", "lost": "magenta"}


class LiveTable:
    """The latest attempts and a footer, drawn again and again in their place."""

    def __init__(self, board: Board, place: Place, clock: Clock, *, screen: Any = None) -> None:
        self._board = board
        self._place = place
        self._clock = clock
        self._console = screen or console()
        self._notes: list[str] = []
        self._ending = ""

    def started(self, seconds: float) -> None:
        self._note(f"{counted(self._place.jobs, 'job')} ready after {seconds:.1f} s")

    def serving(self, url: str) -> None:
        self._note(serving_text(url))

    def attempt(self, line: Line) -> None:
        """Nothing to do: the board has it, and the next look shows it."""

    def first_run(self, seconds: float) -> None:
        self._note(f"first run done {seconds:.1f} s after the start")

    def stopping(self, *, at_once: bool) -> None:
        self._ending = "ending at once" if at_once else ending_text(self._place)

    async def run(self, gone: asyncio.Event) -> None:
        from rich.live import Live

        with Live(console=self._console, auto_refresh=False, transient=False) as live:
            while not gone.is_set():
                self._show(live)
                await self._clock.wait(gone, REFRESH)
            self._ending = "ended"
            self._show(live)

    def stopped(self) -> None:
        self._console.print(last_words(self._board, self._place))

    def _note(self, text: str) -> None:
        self._notes.append(text)

    def _show(self, live: Any) -> None:
        for note in self._notes:
            live.console.print(note)
        self._notes.clear()
        live.update(self.drawn(now=self._clock.now()), refresh=True)

    def drawn(self, *, now: datetime) -> Any:
        """Return the table with its footer, as Rich draws it: never wider or higher than the terminal."""
        from rich.box import SIMPLE_HEAD
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        columns = [name for name in COLUMNS if self._console.width >= NARROW or name not in LESSER]
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        for name in columns:
            head = "slot (UTC)" if name == "slot" else name
            table.add_column(head, justify="right" if name in NUMBERS else "left", no_wrap=name not in ELASTIC)
        for line in self._board.latest(self._console.height - FRAME):
            cells = dict(zip(COLUMNS, row_of(line, now=now), strict=True))
            cells["slot"] = f"{line.scheduled_for.astimezone(UTC):%H:%M:%S}"
            styles = {"state": _COLOURS.get(line.state, "")}
            table.add_row(
                *(Text(cell(cells[name]), styles.get(name, ""), no_wrap=True, overflow="ellipsis") for name in columns)
            )
        how = self._ending or f"Ctrl-C ends it: running handlers get up to {self._place.drain_seconds:g} s"
        footer = [*counts_texts(self._board), f"data: {self._place.data}", how]
        return Group(table, *(Text(text, "dim", no_wrap=True, overflow="ellipsis") for text in footer))
