"""Gateway keys: their form, their checksum and their digest."""

import hashlib
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.contracts import keys

BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def test_new_key_has_key_form() -> None:
    key = keys.new_key()
    assert len(key) == keys.KEY_LENGTH == 53
    assert key.startswith("sgk_")
    assert set(key[4:]) <= set(BASE62)
    assert keys.has_key_form(key.encode())


def test_new_keys_differ() -> None:
    assert len({keys.new_key() for _ in range(1_000)}) == 1_000


def test_checksum_is_big_endian_base62_of_crc32_padded_to_six() -> None:
    body = b"sgk_" + b"0" * 43
    value = sum(BASE62.index(chr(digit)) * 62**power for power, digit in enumerate(reversed(keys.checksum(body))))
    assert value == zlib.crc32(body)
    assert len(keys.checksum(body)) == 6


def test_checksum_is_stable_across_versions() -> None:
    """Keys in the field must stay valid: this pair is published."""
    assert keys.checksum(b"sgk_" + b"a" * 43) == b"1vpsqC"


@given(st.integers(min_value=4, max_value=52), st.sampled_from(BASE62))
def test_key_form_is_refused_when_one_character_is_mistyped(place: int, character: str) -> None:
    key = "sgk_" + "k" * 43
    key += keys.checksum(key.encode()).decode()
    mistyped = key[:place] + character + key[place + 1 :]
    assert keys.has_key_form(mistyped.encode()) == (mistyped == key)


@pytest.mark.parametrize(
    "text", [b"", b"sgk_", b"sk-abc", b"x" * 53, b"\xff" * 53, b"sgk_" + b"a" * 50, b"' OR 1=1 --"]
)
def test_key_form_is_refused_when_text_is_no_key(text: bytes) -> None:
    assert not keys.has_key_form(text)


def test_key_digest_is_the_hex_sha256() -> None:
    assert keys.key_digest(b"sgk_x") == hashlib.sha256(b"sgk_x").hexdigest()
