"""Where log events go: to standard error, as lines for people or, where no terminal is, as JSON.

Nobody who logs waits for a reader: see LineWriter.
"""

import logging
import sys
from typing import Final

import structlog

from rota.errors import InvalidInput
from rota.worker.line_writer import LineWriter

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}


_TEXT_NOTICE: Final = "log.dropped: {dropped} lines, since nobody read them\n"
_JSON_NOTICE: Final = '{{"dropped": {dropped}, "event": "log.dropped", "level": "warning"}}\n'

_in_use: Final[list[LineWriter]] = []


def configure(level: str, *, as_json: bool) -> None:
    """Log what is at least that severe. Raises InvalidInput for a level that there is not."""
    if level.lower() not in LEVELS:
        raise InvalidInput("log_level", f"{level!r} is not a level", hint=f"use one of {', '.join(LEVELS)}")
    if as_json:
        last: list[structlog.types.Processor] = [
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(default=str),
        ]
    else:
        last = [
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(),
                pad_event_to=28,
                # The usual one shows local variables, and those hold tokens and payloads.
                exception_formatter=structlog.dev.plain_traceback,
            )
        ]
    writer = LineWriter(_JSON_NOTICE if as_json else _TEXT_NOTICE)
    while _in_use:
        _in_use.pop().close()
    _in_use.append(writer)
    # What libraries and handlers log without having chosen where; unlike the usual one it waits for no reader.
    logging.lastResort = logging.StreamHandler(writer)
    logging.lastResort.setLevel(logging.WARNING)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level.lower()]),
        logger_factory=structlog.WriteLoggerFactory(file=writer),  # type: ignore[arg-type]  # it only writes
        cache_logger_on_first_use=False,
    )
