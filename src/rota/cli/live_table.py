"""The face of `rota dev` in a terminal: the latest attempts and a footer, drawn again and again in their place."""

import asyncio
from datetime import datetime
from typing import Any, Final

from rota.cli.board import Board, Line
from rota.cli.faces import COLUMNS, Place, counts_text, ending_text, last_words, row_of
from rota.cli.output import Table, cell, console, rich_table
from rota.clock import Clock

REFRESH: Final = 0.25
"""Seconds between two looks of the live table."""
FRAME: Final = 9
"""Lines of the terminal that are not attempts."""
_COLOURS: Final = {"running": "cyan", "succeeded": "green", "dead": "bold red", "pending": "yellow", "lost": "magenta"}


class LiveTable:
    """The latest attempts and a footer, drawn again and again in their place."""

    def __init__(self, board: Board, place: Place, clock: Clock) -> None:
        self._board = board
        self._place = place
        self._clock = clock
        self._console = console()
        self._notes: list[str] = []
        self._ending = ""

    def started(self, seconds: float) -> None:
        self._note(f"{self._place.jobs} jobs are ready after {seconds:.1f} s; data in {self._place.data}")

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
        """Return the table with its footer, as Rich draws it."""
        from rich.console import Group
        from rich.text import Text

        lines = self._board.latest(self._console.height - FRAME)
        table = rich_table(Table(columns=COLUMNS, rows=(), right=frozenset({"attempt", "start delay", "duration"})))
        for line in lines:
            cells = [Text(cell(value)) for value in row_of(line, now=now)]
            cells[2].stylize(_COLOURS.get(cells[2].plain, ""))
            table.add_row(*cells)
        how = self._ending or f"Ctrl-C ends it: running handlers get up to {self._place.drain_seconds:g} s"
        return Group(table, Text(counts_text(self._board)), Text(f"data: {self._place.data}   {how}", style="dim"))
