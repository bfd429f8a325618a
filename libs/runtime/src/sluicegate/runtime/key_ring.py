"""Sealing of provider credentials: AES-256-GCM under a ring of named keys.

The first key of the ring seals, every key opens, so a key is rotated by putting a new one in front
and sealing again. The associated data (a provider's id) ties a secret to its place: copied to another
record it does not open.
"""

import base64
import binascii
import os
from typing import Final, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sluicegate.contracts.catalogue import SealedSecret

_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12


class SealError(Exception):
    """A secret cannot be opened: its key is not in the ring, or it was changed or moved."""


class KeyRing:
    """Named keys in order; the first one seals."""

    def __init__(self, keys: dict[str, bytes]) -> None:
        if not keys:
            raise ValueError("the key ring is empty")
        self._ciphers = {key_id: AESGCM(key) for key_id, key in keys.items()}
        self._sealing_id = next(iter(keys))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `id:<base64 of 32 bytes>[,id:…]`. Errors name the entry, never its key."""
        keys: dict[str, bytes] = {}
        for place, entry in enumerate(text.split(","), start=1):
            key_id, colon, encoded = entry.strip().partition(":")
            if not (colon and key_id):
                raise ValueError(f"entry {place} of the key ring is not id:key")
            try:
                key = base64.b64decode(encoded, validate=True)
            except binascii.Error:
                raise ValueError(f"key {key_id!r} of the key ring is not base64") from None
            if len(key) != _KEY_BYTES:
                raise ValueError(f"key {key_id!r} of the key ring has {len(key)} bytes, not {_KEY_BYTES}")
            if key_id in keys:
                raise ValueError(f"key {key_id!r} is twice in the key ring")
            keys[key_id] = key
        return cls(keys)

    @staticmethod
    def generate(key_id: str = "k1") -> str:
        """Return the text of a new ring with one random key."""
        return f"{key_id}:{base64.b64encode(os.urandom(_KEY_BYTES)).decode()}"

    @property
    def sealing_id(self) -> str:
        """The key that seals: secrets under another one are due for sealing again."""
        return self._sealing_id

    def seal(self, plaintext: bytes, associated: bytes) -> SealedSecret:
        """Encrypt `plaintext` and tie it to `associated`, with a fresh random nonce."""
        nonce = os.urandom(_NONCE_BYTES)
        ciphertext = self._ciphers[self._sealing_id].encrypt(nonce, plaintext, associated)
        return SealedSecret(key_id=self._sealing_id, nonce=nonce, ciphertext=ciphertext)

    def open(self, sealed: SealedSecret, associated: bytes) -> bytes:
        """Decrypt, or raise SealError."""
        cipher = self._ciphers.get(sealed.key_id)
        if cipher is None:
            raise SealError(f"key {sealed.key_id!r} is not in the key ring")
        try:
            return cipher.decrypt(sealed.nonce, sealed.ciphertext, associated)
        except (InvalidTag, ValueError):
            raise SealError("the secret was changed, or belongs to another record") from None
