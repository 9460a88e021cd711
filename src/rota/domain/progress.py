"""How far a run is, as its handler says it."""

from typing import Final, NamedTuple, Self

from rota.domain.attempt import clean_error
from rota.errors import InvalidInput

NOTE_LIMIT: Final = 500
"""The most characters of a progress note."""


class Progress(NamedTuple):
    """A share from 0 to 1 and a note; None is no news. Made by `check_progress`, or of what that has seen before."""

    value: float | None = None
    note: str | None = None

    def after(self, earlier: Self | None) -> "Progress":
        """Return what is known after this and what was said earlier: the latest value, and the latest note."""
        if earlier is None:
            return self
        return Progress(
            earlier.value if self.value is None else self.value, earlier.note if self.note is None else self.note
        )


def check_progress(value: float | None, note: str | None) -> Progress:
    """Return a progress that can be kept. Raises InvalidInput."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1):
        raise InvalidInput("progress.value", f"must be a share from 0 to 1, not {value!r}")
    if note is None:
        return Progress(value)
    if not isinstance(note, str):
        raise InvalidInput("progress.note", f"must be a text, not {type(note).__name__}")
    if len(note) > NOTE_LIMIT:
        raise InvalidInput("progress.note", f"has {len(note)} characters", hint=f"at most {NOTE_LIMIT}")
    # Cleaning may lengthen it.
    return Progress(value, clean_error(note)[:NOTE_LIMIT])
