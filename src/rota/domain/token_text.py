"""The text of a token: `rota_<token id>_<secret>`. The id finds its row; of the secret only a hash is kept."""

import re
from base64 import b32encode, urlsafe_b64encode
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

ID_LENGTH: Final = 12
"""Characters of a token's id: 60 bits."""
SECRET_BYTES: Final = 32
TEXT_LIMIT: Final = 200
"""A text that is longer is no token, and is not looked at."""

_ID: Final = re.compile(rf"[a-z2-7]{{{ID_LENGTH}}}", re.ASCII)
_TEXT: Final = re.compile(rf"rota_({_ID.pattern})_([A-Za-z0-9_-]{{43}})", re.ASCII)


@dataclass(frozen=True, slots=True)
class TokenText:
    """A token's two parts. The secret is not in its representation, which may end up in a log."""

    token_id: str
    secret: str = field(repr=False)

    def __str__(self) -> str:
        return f"rota_{self.token_id}_{self.secret}"

    @property
    def secret_hash(self) -> bytes:
        """What is stored. A plain digest is enough, since a secret of 256 random bits cannot be guessed at."""
        return sha256(self.secret.encode()).digest()


def token_of(random: bytes) -> TokenText:
    """Return the token that these random bytes make: 8 for its id, SECRET_BYTES for its secret."""
    assert len(random) == 8 + SECRET_BYTES
    token_id = b32encode(random[:8]).decode().lower()[:ID_LENGTH]
    return TokenText(token_id, urlsafe_b64encode(random[8:]).decode().rstrip("="))


def parse_token(text: str) -> TokenText | None:
    """Read a token's text; None for what cannot be one."""
    match = _TEXT.fullmatch(text) if len(text) <= TEXT_LIMIT else None
    return TokenText(match[1], match[2]) if match else None


def is_token_id(text: str) -> bool:
    """Whether a text can be a token's id."""
    return _ID.fullmatch(text) is not None
