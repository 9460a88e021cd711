"""How a handler's call ended, as a value, and the error text that is kept of it."""

import asyncio
import inspect
import json
import os
import re
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, Final

from rota.domain.attempt import RESULT_LIMIT, Outcome, check_result, clean_error
from rota.errors import GiveUp, RetryLater

SUMMARY_LIMIT: Final = 500
"""The most characters of an error's first line, which says what happened before the traceback says where."""

# No text, however long, costs more than its length: no two matches of an alternative try the same stretch of it.
_PASSWORD: Final = re.compile(
    r"""
      (://[^\s:/?#@]*:) [^\s/]+ (?=@)   # scheme://user:password@
      # the same with blanks in it, of databases: elsewhere it would be a port, and prose with an @
    | (\b(?:postgres(?:ql)?|mysql|mariadb|rediss?|amqps?|mongodb)(?:\+\w{1,20})?://[^\s:/?#@]+:) [^\n/@]{1,200} (?=@)
    | ([?&](?:ssl)?password=) [^\s&"]*  # a parameter of a URL
    | (password[ \t]*=(?!=)[ \t]*)       # libpq's key = value, PGPASSWORD in an environment, a call's argument
      (?: '(?:[^'\\\n]|\\.)*' | "(?:[^"\\\n]|\\.)*" | ((?:[^\s\\]+|\\.)+) )
    """,
    re.VERBOSE | re.IGNORECASE,
)

_MACHINERY: Final = (os.path.dirname(__file__) + os.sep, os.path.dirname(asyncio.__file__) + os.sep)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What became of one call, in a Report's words. `error` is cleaned and bounded, `result` has been checked.

    `dropped` says why a success is without the result that its handler returned.
    """

    outcome: Outcome
    error: str | None = None
    retry_after: timedelta | None = None
    result: Any = None
    dropped: str | None = None


class PlainFailure(Exception):
    """A failure whose text says it all: no traceback is kept with it. Raised by handlers that Rota itself brings."""


SUCCEEDED: Final = Ending(outcome=Outcome.SUCCEEDED)


def succeeded(returned: object) -> Ending:
    """Return a success with what the handler returned as its result.

    What cannot be kept is left out, and the success stays one: the work is done, and might not bear being repeated.
    """
    if returned is None:
        return SUCCEEDED
    try:
        if _is_large(returned):
            return Ending(outcome=Outcome.SUCCEEDED, dropped=f"it has more than {RESULT_LIMIT} bytes")
        text = check_result(returned)
    except BaseException as error:
        # BaseException too: what is looked at is the handler's own object, which may answer as it likes.
        return Ending(outcome=Outcome.SUCCEEDED, dropped=error_text(_said(error))[:SUMMARY_LIMIT])
    # A copy: what was returned may still change before it is reported.
    return Ending(outcome=Outcome.SUCCEEDED, result=None if text is None else json.loads(text))


def failed(text: str, *, retry_after: timedelta | None = None) -> Ending:
    """Return a failure with that text, cleaned and without passwords."""
    return Ending(outcome=Outcome.FAILED, error=error_text(text), retry_after=retry_after)


def call(function: Callable[..., Any], *arguments: object) -> Ending:
    """Call a plain function and return how it ended, whatever it raises."""
    try:
        result = function(*arguments)
    except BaseException as raised:
        return ending_of(raised)
    if inspect.iscoroutine(result):
        result.close()
        return failed("the handler returned a coroutine, so none of it has run: declare it with `async def`")
    return succeeded(result)


def call_async(function: Callable[..., Awaitable[object]], *arguments: object) -> Ending:
    """Call a coroutine function in an event loop of its own and return how it ended, whatever it raises."""

    async def whole() -> Ending:
        try:
            returned = await function(*arguments)
        except Exception as raised:
            return ending_of(raised)
        return succeeded(returned)

    try:
        return asyncio.run(whole())
    except BaseException as raised:
        return ending_of(raised)


def ending_of(raised: BaseException) -> Ending:
    """Decide what an exception means: the handler's two signals, or an attempt that failed."""
    if isinstance(raised, GiveUp):
        return Ending(outcome=Outcome.GAVE_UP, error=error_text(_said(raised) or "the handler gave up"))
    if isinstance(raised, RetryLater):
        reason = error_text(raised.reason) if raised.reason else None
        return Ending(outcome=Outcome.SNOOZED, error=reason, retry_after=raised.delay)
    if isinstance(raised, PlainFailure):
        return failed(_said(raised))
    return Ending(outcome=Outcome.FAILED, error=failure_text(raised))


def failure_text(raised: BaseException) -> str:
    """Return what happened on the first line, then the traceback without Rota's own frames."""
    # Masked before it is cut: half an address is no address, and its password would stay.
    summary = mask_secrets(f"{type(raised).__name__}: {_said(raised)}".split("\n", 1)[0])
    if len(summary) > SUMMARY_LIMIT:
        summary = summary[: SUMMARY_LIMIT - 1] + "…"
    try:
        told = "".join(traceback.format_exception(type(raised), raised, _users_frames(raised.__traceback__)))
    except BaseException:
        told = "(the exception could not be formatted)"
    return error_text(f"{summary}\n\n{told}")


def error_text(text: str) -> str:
    """Return a text that can be kept: passwords masked, then cleaned and bounded."""
    return clean_error(mask_secrets(text))


def mask_secrets(text: str) -> str:
    """Hide the passwords in a text's addresses: `scheme://user:password@`, and `password=...` or `sslpassword=...`."""
    return _PASSWORD.sub(_masked, text)


def _masked(found: re.Match[str]) -> str:
    """Return what stands for a password; brackets and commas behind a bare word belong to the code around it."""
    bare = found[5] or ""
    return f"{found[1] or found[2] or ''}{found[3] or ''}{found[4] or ''}***{bare[len(bare.rstrip('),;]}')) :]}"


def _is_large(value: object) -> bool:
    """Tell whether a value is surely too large for a result, without looking at much more than there may be of it."""
    waiting, room = [value], RESULT_LIMIT
    while waiting and room >= 0:
        part = waiting.pop()
        room -= 1
        if isinstance(part, str):
            room -= len(part)
        elif isinstance(part, dict | list | tuple):
            if len(part) > room:
                return True
            waiting += [*part.keys(), *part.values()] if isinstance(part, dict) else part
    return room < 0


def _said(raised: BaseException) -> str:
    try:
        return str(raised)
    except BaseException:
        return "(its text could not be read)"


def _users_frames(trace: TracebackType | None) -> TracebackType | None:
    """Leave out the frames that lead from the worker to the handler."""
    users = trace
    while users is not None and users.tb_frame.f_code.co_filename.startswith(_MACHINERY):
        users = users.tb_next
    return users or trace
