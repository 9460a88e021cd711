"""Where log events go: to standard error, as lines for people or, where no terminal is, as JSON."""

import sys
from typing import Final

import structlog

from rota.errors import InvalidInput

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}


class _StandardError:
    """Standard error as it is at the moment of writing: a live table puts itself in between."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


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
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level.lower()]),
        logger_factory=structlog.PrintLoggerFactory(file=_StandardError()),  # type: ignore[arg-type]  # it only writes
        cache_logger_on_first_use=False,
    )
