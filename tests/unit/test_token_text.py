"""A token's text: two parts that can be told apart, whatever is in the second."""

from hashlib import sha256

from hypothesis import given
from hypothesis import strategies as st

from rota.domain.token_text import SECRET_BYTES, is_token_id, parse_token, token_of

RANDOM = st.binary(min_size=8 + SECRET_BYTES, max_size=8 + SECRET_BYTES)


@given(RANDOM)
def test_a_text_reads_back_as_its_parts(random: bytes) -> None:
    token = token_of(random)
    assert parse_token(str(token)) == token
    assert is_token_id(token.token_id)
    assert token.secret_hash == sha256(token.secret.encode()).digest()
    assert token.secret not in repr(token)


@given(RANDOM, RANDOM)
def test_other_random_bytes_make_another_token(one: bytes, other: bytes) -> None:
    assert (token_of(one).secret == token_of(other).secret) == (one[8:] == other[8:])


@given(st.text(max_size=80))
def test_no_other_text_is_a_token(text: str) -> None:
    parsed = parse_token(text)
    assert parsed is None or str(parsed) == text


def test_what_only_looks_like_a_token_is_none() -> None:
    text = str(token_of(bytes(range(8 + SECRET_BYTES))))
    for wrong in (text + "\n", text.upper(), text[:-1], text + "A", text.replace("rota_", "rota-"), "", "rota__"):
        assert parse_token(wrong) is None
    for wrong in ("", "A" * 12, "a" * 11, "a" * 13, "a" * 12 + "\n", "١" * 12, "a\x00"):
        assert not is_token_id(wrong)
