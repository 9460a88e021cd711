"""Handlers: the user's functions by name, and what each of them needs to be run."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

from rota.domain.http_target import HTTP, handler_key, looks_like_a_url
from rota.errors import InvalidInput, NotFound

Isolation = Literal["async", "thread", "process"]
ISOLATIONS: Final[tuple[Isolation, ...]] = ("async", "thread", "process")

SHELL: Final = "shell"
"""The name under which a worker that allows shell commands knows them; users cannot register it."""

NAME_LIMIT: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """A function that carries out runs. `takes_run` tells whether it wants the run as its argument.

    `isolation` says where it runs: in the worker's event loop, in a thread of it, or in a child process. With
    `takes_claim` it is a coroutine function of Rota's own, which takes the claim and the run and returns an Ending.
    """

    name: str
    function: Callable[..., Any]
    isolation: Isolation
    takes_run: bool
    takes_claim: bool = False

    @property
    def is_async(self) -> bool:
        return _is_async(self.function)


class HandlerRegistry:
    """The handlers of one app, by name."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._handlers)

    def __contains__(self, name: object) -> bool:
        return name in self._handlers

    def __iter__(self) -> Iterator[Handler]:
        return iter(self._handlers.values())

    def __len__(self) -> int:
        return len(self._handlers)

    def register(self, name: str, function: Callable[..., Any], isolation: Isolation | None = None) -> Handler:
        """Add a function under a name.

        Without `isolation` a coroutine function runs in the event loop ("async") and any other in a thread. Raises
        InvalidInput for a name that is taken, reserved or unfit, and for a function that cannot be a handler.
        """
        _check_name(name)
        if name in self._handlers:
            raise InvalidInput("handler", f"{name!r} is registered already", hint="give each handler its own name")
        takes_run = _check_function(name, function)
        handler = Handler(
            name=name,
            function=function,
            isolation=_check_isolation(name, function, isolation),
            takes_run=takes_run,
        )
        self._handlers[name] = handler
        return handler

    def get(self, name: str) -> Handler | None:
        """Return the handler of that name, or of a URL's key; None if there is none."""
        return self._handlers.get(handler_key(name))

    def resolve(self, name: str) -> Handler:
        """Return the handler of that name. Raises NotFound."""
        handler = self.get(name)
        if handler is None:
            known = ", ".join(sorted(self._handlers)) or "none"
            raise NotFound(f"no handler is called {name!r}", hint=f"known handlers: {known}")
        return handler

    def plus(self, handler: Handler) -> Self:
        """Return a copy that knows one more handler: the app's own registry stays as its user made it."""
        copy = type(self)()
        copy._handlers = {**self._handlers, handler.name: handler}
        return copy


def _is_async(function: Callable[..., Any]) -> bool:
    call = getattr(type(function), "__call__", None)  # noqa: B004 - the method is looked at, not tested for
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def _check_name(name: str) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= NAME_LIMIT:
        raise InvalidInput("handler", f"must be a name of 1 to {NAME_LIMIT} characters")
    if not name.isprintable():
        raise InvalidInput("handler", f"{name!r} has control characters", hint="use letters, digits, '-', '.' and '_'")
    if name == SHELL or name.startswith(f"{SHELL}:"):
        raise InvalidInput(
            "handler", f"{name!r} is reserved for shell commands", hint="choose another name for this function"
        )
    if name == HTTP or looks_like_a_url(name):
        raise InvalidInput(
            "handler", f"{name!r} is reserved for HTTP targets", hint="choose another name for this function"
        )


def _check_function(name: str, function: Callable[..., Any]) -> bool:
    """Refuse what cannot be a handler; tell whether the function takes the run."""
    if inspect.isclass(function):
        raise InvalidInput("handler", f"{name!r} is a class", hint="register a function or a bound method")
    if not callable(function):
        raise InvalidInput("handler", f"{name!r} is {type(function).__name__}, which cannot be called")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidInput(
            "handler", f"{name!r} is a generator, so a call would run none of it", hint="remove the yield"
        )
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise InvalidInput(
            "handler", f"{name!r} does not tell its parameters", hint="wrap it in a function that takes the run"
        ) from None
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in positional if p.default is p.empty]
    keywords = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if len(required) > 1 or keywords:
        wanted = ", ".join([p.name for p in required] + keywords)
        raise InvalidInput(
            "handler", f"{name!r} wants the parameters {wanted}", hint="a handler takes the run, or nothing"
        )
    return bool(positional) or any(p.kind is p.VAR_POSITIONAL for p in parameters)


def _check_isolation(name: str, function: Callable[..., Any], isolation: Isolation | None) -> Isolation:
    is_async = _is_async(function)
    if isolation is None:
        return "async" if is_async else "thread"
    if isolation not in ISOLATIONS:
        raise InvalidInput("isolation", f"{isolation!r} is none of {', '.join(ISOLATIONS)}")
    if is_async and isolation == "thread":
        raise InvalidInput(
            "isolation", f"{name!r} is a coroutine function, which no thread runs", hint='use "async" or "process"'
        )
    if not is_async and isolation == "async":
        raise InvalidInput(
            "isolation", f"{name!r} is a plain function and would block the loop", hint='use "thread" or "process"'
        )
    return isolation
