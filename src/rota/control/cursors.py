"""Cursors: a place in one list of one tenant under one filter, as opaque text. Whatever else is given is refused.

A list that goes on after a place, and not after a count, is stable: entries made meanwhile move nothing. The checksum
catches what was cut or mistyped, and is no secret: a forged cursor leads only to another place in a list that its
holder may read anyway.
"""

import base64
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import Any, Final
from uuid import UUID

from rota.domain.ids import slot_of
from rota.domain.job import check_name
from rota.errors import InvalidCursor, InvalidInput

CURSOR_LIMIT: Final = 1500
"""The most characters of a cursor; the longest is that of a job's id with 200 characters of 4 bytes."""

_LIST_BYTES: Final = 8
_CHECK_BYTES: Final = 6
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursors:
    """The cursors of one list: its kind, and all that chooses its entries, its tenant first."""

    kind: str
    chosen_by: tuple[Any, ...]

    def after_job(self, job_id: str) -> str:
        """Return the cursor of the place after a job."""
        return self._seal(job_id.encode())

    def after_run(self, run_id: UUID) -> str:
        """Return the cursor of the place after a run; its id holds its slot."""
        return self._seal(run_id.bytes)

    def after_entry(self, at: datetime, entry_id: UUID) -> str:
        """Return the cursor of the place after an entry of the audit log."""
        return self._seal(((at - _EPOCH) // _MICROSECOND).to_bytes(8, signed=True) + entry_id.bytes)

    def after_token(self, at: datetime, token_id: str) -> str:
        """Return the cursor of the place after a token."""
        return self._seal(((at - _EPOCH) // _MICROSECOND).to_bytes(8, signed=True) + token_id.encode())

    def job(self, cursor: str) -> str:
        """Return the job's id. Raises InvalidCursor."""
        place = self._place(cursor)
        try:
            job_id = place.decode()
            check_name("job_id", job_id)
        except (UnicodeDecodeError, InvalidInput):
            raise _refused() from None
        return job_id

    def run(self, cursor: str) -> tuple[datetime, UUID]:
        """Return the run's slot and id. Raises InvalidCursor."""
        place = self._place(cursor)
        try:
            run_id = UUID(bytes=place)
            return slot_of(run_id)[1], run_id
        except (ValueError, InvalidInput):
            raise _refused() from None

    def entry(self, cursor: str) -> tuple[datetime, UUID]:
        """Return the entry's instant and id. Raises InvalidCursor."""
        place = self._place(cursor)
        try:
            return _EPOCH + int.from_bytes(place[:8], signed=True) * _MICROSECOND, UUID(bytes=place[8:])
        except (ValueError, OverflowError):
            raise _refused() from None

    def token(self, cursor: str) -> tuple[datetime, str]:
        """Return the token's instant and id. Raises InvalidCursor."""
        place = self._place(cursor)
        try:
            return _EPOCH + int.from_bytes(place[:8], signed=True) * _MICROSECOND, place[8:].decode("ascii")
        except (ValueError, OverflowError):
            raise _refused() from None

    @property
    def _list(self) -> bytes:
        """What every cursor of this list begins with."""
        text = json.dumps([self.kind, *self.chosen_by], default=str)
        return blake2b(text.encode(), digest_size=_LIST_BYTES).digest()

    def _seal(self, place: bytes) -> str:
        content = self._list + place
        check = blake2b(content, digest_size=_CHECK_BYTES).digest()
        return base64.urlsafe_b64encode(content + check).rstrip(b"=").decode()

    def _place(self, cursor: str) -> bytes:
        if len(cursor) > CURSOR_LIMIT or not cursor.isascii():
            raise _refused()
        try:
            sealed = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        except ValueError:
            raise _refused() from None
        place = sealed[_LIST_BYTES:-_CHECK_BYTES]
        # The only text of a place is the one that this list gives: base64 has several for the same bytes.
        if self._seal(place) != cursor:
            raise _refused()
        return place


def _refused() -> InvalidCursor:
    return InvalidCursor("cursor", "this list did not give it", hint="begin without a cursor, with the same filter")
