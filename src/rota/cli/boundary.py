"""The edge of the program: every way in which a command can end becomes an exit code and, at most, one message.

0 done; 1 the answer is "no", or there are findings; 2 usage or invalid input; 3 not found; 4 conflict; 5 the database
or the set-up is not as it must be; 70 a fault of Rota itself; 129, 130 and 143 ended by SIGHUP, Ctrl-C and SIGTERM.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, Final

import typer
from typer.core import TyperGroup

from rota.errors import Conflict, InvalidInput, NotFound, RotaError

DONE: Final = 0
NO: Final = 1
INVALID: Final = 2
NOT_FOUND: Final = 3
CONFLICT: Final = 4
UNAVAILABLE: Final = 5
FAULT: Final = 70
INTERRUPTED: Final = 128 + signal.SIGINT


class Boundary(TyperGroup):
    """The root command: runs what was asked for and explains what goes wrong, as text or, with --json, as JSON."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        try:
            answer = super().main(
                args=words,
                prog_name=prog_name or "rota",
                complete_var=complete_var,
                standalone_mode=False,
                windows_expand_args=windows_expand_args,
                **extra,
            )
        except Exception as error:
            if os.environ.get("ROTA_DEBUG") == "1" and not _is_about_usage(error):
                raise
            answer = _explain(error, as_json=_wants_json(words))
        except (KeyboardInterrupt, asyncio.CancelledError):
            answer = INTERRUPTED
        code = answer if isinstance(answer, int) else DONE
        if code == INTERRUPTED:
            print("ended by Ctrl-C", file=sys.stderr)
        if standalone_mode:
            sys.exit(code)
        return code


def exit_code_of(error: RotaError) -> int:
    """Return the exit code that stands for an error."""
    for kind, code in ((InvalidInput, INVALID), (NotFound, NOT_FOUND), (Conflict, CONFLICT)):
        if isinstance(error, kind):
            return code
    return UNAVAILABLE


def error_to_json(error: RotaError) -> dict[str, Any]:
    """Return {"code", "field", "reason", "hint"}; `field` is null unless a value was refused."""
    if isinstance(error, InvalidInput):
        return {"code": error.code, "field": error.field, "reason": error.reason, "hint": error.hint}
    reason = str(error).removesuffix(f" ({error.hint})") if error.hint else str(error)
    return {"code": error.code, "field": None, "reason": reason, "hint": error.hint}


def _explain(error: Exception, *, as_json: bool) -> int:
    error = _first_of(error)
    if isinstance(error, typer.Abort):
        print("ended: nothing was done", file=sys.stderr)
        return NO
    if isinstance(error, RotaError):
        code, document, text = exit_code_of(error), error_to_json(error), str(error)
    else:
        code, document, text = _explain_foreign(error)
    if not document["reason"]:
        # Help was shown in place of an error.
        return code
    if as_json:
        print(json.dumps({"error": document}, ensure_ascii=False))
    else:
        print(f"error: {text}", file=sys.stderr)
    return code


def _explain_foreign(error: Exception) -> tuple[int, dict[str, Any], str]:
    """Explain what is no error of Rota: wrong usage, a refusal of the database's own, or a fault."""
    format_message = getattr(error, "format_message", None)
    if callable(format_message):
        reason = str(format_message()).removesuffix(".")
        context = getattr(error, "ctx", None)
        hint = f"see `{context.command_path} --help`" if context is not None else "see `rota --help`"
        code, name = INVALID, "usage"
    elif getattr(error, "sqlstate", None):
        reason, hint = f"the database refused: {error}", "look at --database-url and the rights of its user"
        code, name = UNAVAILABLE, "database-refused"
    else:
        reason = f"a fault in Rota: {type(error).__name__}: {error}"
        hint = "run it again with ROTA_DEBUG=1 and report what it shows"
        code, name = FAULT, "fault"
    return code, {"code": name, "field": None, "reason": reason, "hint": hint}, f"{reason} ({hint})"


def _is_about_usage(error: Exception) -> bool:
    """Whether Typer raised it over wrong usage, which is known by its method: its class is private to Typer."""
    return isinstance(error, typer.Abort) or callable(getattr(error, "format_message", None))


def _first_of(error: Exception) -> Exception:
    """Return the first error of a group, since what runs together also fails together."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def _wants_json(words: Sequence[str]) -> bool:
    options = words[: words.index("--")] if "--" in words else words
    return "--json" in options
