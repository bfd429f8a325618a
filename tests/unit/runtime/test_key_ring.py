"""The key ring: what is sealed opens only here, unchanged and in its place."""

import base64

import msgspec
import pytest

from sluicegate.runtime.key_ring import KeyRing, SealError

OLD = KeyRing.generate("k0")
NEW = KeyRing.generate("k1")


def test_sealed_secret_opens_in_its_place() -> None:
    ring = KeyRing.parse(NEW)
    sealed = ring.seal(b"sk-secret", b"prv_1")
    assert ring.open(sealed, b"prv_1") == b"sk-secret"
    assert b"sk-secret" not in msgspec.json.encode(sealed)


def test_sealing_twice_gives_different_ciphertexts() -> None:
    ring = KeyRing.parse(NEW)
    assert ring.seal(b"x", b"") != ring.seal(b"x", b"")


def test_secret_does_not_open_when_moved_to_another_record() -> None:
    ring = KeyRing.parse(NEW)
    with pytest.raises(SealError):
        ring.open(ring.seal(b"x", b"prv_1"), b"prv_2")


@pytest.mark.parametrize("field", ["nonce", "ciphertext"])
@pytest.mark.parametrize("value", [b"", b"\x00" * 12])
def test_secret_does_not_open_when_changed(field: str, value: bytes) -> None:
    ring = KeyRing.parse(NEW)
    with pytest.raises(SealError):
        ring.open(msgspec.structs.replace(ring.seal(b"x", b""), **{field: value}), b"")


def test_rotation_opens_what_the_old_key_sealed_and_seals_with_the_new() -> None:
    sealed = KeyRing.parse(OLD).seal(b"x", b"")
    ring = KeyRing.parse(f"{NEW}, {OLD}")
    assert ring.open(sealed, b"") == b"x"
    assert ring.sealing_id == ring.seal(b"x", b"").key_id == "k1"


def test_secret_does_not_open_when_its_key_left_the_ring() -> None:
    sealed = KeyRing.parse(OLD).seal(b"x", b"")
    with pytest.raises(SealError, match="k0"):
        KeyRing.parse(NEW).open(sealed, b"")


SHORT = base64.b64encode(b"x" * 16).decode()


@pytest.mark.parametrize(
    "text",
    [
        *("", "k1", ":abc", "k1:", "k1:!!", f"k1:{SHORT}"),
        pytest.param(f"{NEW},{NEW}", id="one entry twice"),
        pytest.param(f"{NEW},", id="an empty entry"),
    ],
)
def test_ring_is_refused_without_showing_a_key(text: str) -> None:
    with pytest.raises(ValueError, match=r"key|ring") as raised:
        KeyRing.parse(text)
    assert SHORT not in str(raised.value)
    assert NEW.removeprefix("k1:") not in str(raised.value)
