"""Conditions of a put: what `If-Match` and `If-None-Match` say of the version that it replaces."""

import re
from collections.abc import Awaitable, Callable
from typing import Annotated, Final

from fastapi import Header

from rota.errors import InvalidInput, NotFound, VersionConflict

GREATEST_VERSION: Final = 2**31 - 1

Guard = Annotated[str | None, Header(max_length=100)]


async def version_meant(
    thing: str, if_match: str | None, if_none_match: str | None, *, standing: Callable[[], Awaitable[int]]
) -> int | None:
    """Return the version that a put's conditions ask for, 0 for none yet; None without any condition.

    `thing` is what is put, such as "job 'a'"; `standing` looks its version up, or raises NotFound. Raises
    VersionConflict, InvalidInput.
    """
    if if_match is not None and if_none_match is not None:
        raise InvalidInput("If-Match", "contradicts If-None-Match", hint="send one of them")
    kind = thing.partition(" ")[0]
    if if_none_match is not None:
        if if_none_match.strip() != "*":
            raise InvalidInput("If-None-Match", "must be *", hint=f"it puts a {kind} that is not there yet")
        return 0
    if if_match is None:
        return None
    if if_match.strip() == "*":
        try:
            return await standing()
        except NotFound as error:
            raise VersionConflict(f"there is no {thing} to replace") from error
    matched = re.fullmatch(r'\s*"([1-9][0-9]{0,9})"\s*', if_match)
    if matched is None or int(matched[1]) > GREATEST_VERSION:
        raise VersionConflict(f"no version of a {kind} has the ETag {if_match[:50]}", hint="take it from a GET")
    return int(matched[1])
