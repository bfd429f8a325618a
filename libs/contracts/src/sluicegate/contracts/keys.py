"""The form of a gateway key, and its digest.

`sgk_` + 43 base62 characters (256 random bits) + 6 base62 characters of CRC-32 over what stands
before them, so that a mistyped key is refused without hashing. Only the SHA-256 of a key is stored.
"""

import hashlib
import secrets
import zlib
from typing import Final

PREFIX: Final = "sgk_"
KEY_LENGTH: Final = 4 + 43 + 6
VISIBLE_PREFIX_LENGTH: Final = 12
_BASE62: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def _base62(value: int, width: int) -> str:
    digits = []
    for _ in range(width):
        value, rest = divmod(value, 62)
        digits.append(_BASE62[rest])
    return "".join(reversed(digits))


def checksum(body: bytes) -> bytes:
    """Return the 6 checksum characters of `body` (`sgk_` and the 43 characters behind it)."""
    return _base62(zlib.crc32(body), 6).encode()


def new_key() -> str:
    """Return a new gateway key. It is shown once and never stored."""
    body = PREFIX + _base62(secrets.randbits(256), 43)
    return body + checksum(body.encode()).decode()


def has_key_form(key: bytes) -> bool:
    """Tell whether `key` has the length, prefix and checksum of a gateway key."""
    return len(key) == KEY_LENGTH and key.startswith(b"sgk_") and checksum(key[:-6]) == key[-6:]


def key_digest(key: bytes) -> str:
    """Return the SHA-256 of a key in hex: its name in the `sluicegate-keys` bucket."""
    return hashlib.sha256(key).hexdigest()
