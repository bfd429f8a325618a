"""Signs a webhook, twice over, with every secret that is valid now (two while one is being replaced). Pure.

`webhook-id`, `webhook-timestamp`, `webhook-signature` are Standard Webhooks 1.0, which libraries in most languages
check: HMAC-SHA256 over `id.timestamp.body`, the key being what follows `whsec_`, decoded from base64.

`x-sluicegate-signature: t=<timestamp>,v1=<hex>` is the older form that takes three lines of any language to check:
HMAC-SHA256 over `timestamp.body`, the key being the secret as it was shown.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from typing import Final

_SHOWN_PREFIX: Final = "whsec_"


def headers(message_id: str, timestamp_s: int, body: bytes, secrets: Sequence[str]) -> dict[str, str]:
    """Return the headers of one attempt; one signature per secret, in their order."""
    signed = {"webhook-id": message_id, "webhook-timestamp": str(timestamp_s)}
    if not secrets:
        return signed
    standard = f"{message_id}.{timestamp_s}.".encode() + body
    plain = f"{timestamp_s}.".encode() + body
    signed["webhook-signature"] = " ".join(
        "v1," + base64.b64encode(_digest(_key_bytes(secret), standard)).decode() for secret in secrets
    )
    signed["x-sluicegate-signature"] = ",".join(
        [f"t={timestamp_s}", *(f"v1={_digest(secret.encode(), plain).hex()}" for secret in secrets)]
    )
    return signed


def _digest(key: bytes, content: bytes) -> bytes:
    return hmac.new(key, content, hashlib.sha256).digest()


def _key_bytes(secret: str) -> bytes:
    encoded = secret.removeprefix(_SHOWN_PREFIX)
    try:
        return base64.b64decode(encoded, validate=True)
    except binascii.Error:
        return secret.encode()
