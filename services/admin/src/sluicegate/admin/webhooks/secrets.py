"""Secrets of webhooks: made here, shown once, stored sealed. Their form is that of Standard Webhooks."""

import base64
import os
from typing import Final

PREFIX: Final = "whsec_"
_BYTES: Final = 32


def new_secret() -> str:
    """Return a new secret: 256 random bits."""
    return PREFIX + base64.b64encode(os.urandom(_BYTES)).decode()
