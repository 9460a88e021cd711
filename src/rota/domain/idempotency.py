"""Keys that make a request for a run repeatable."""

import unicodedata
from typing import Final

from rota.errors import InvalidInput

KEY_LIMIT: Final = 200
"""The most characters of an Idempotency-Key."""


def check_key(key: object, *, field: str = "Idempotency-Key") -> None:
    """Refuse an Idempotency-Key that is not 1 to KEY_LIMIT printable characters."""
    if not isinstance(key, str) or not 1 <= len(key) <= KEY_LIMIT:
        raise InvalidInput(field, f"must be 1 to {KEY_LIMIT} characters", hint="a random UUID will do")
    if any(unicodedata.category(character)[0] == "C" or character in "\u2028\u2029" for character in key):
        raise InvalidInput(field, "holds a character that cannot be printed", hint="a random UUID will do")
