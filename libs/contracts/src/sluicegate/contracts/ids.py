"""Identifiers: record ids, request ids and process ids.

Record ids are generated and opaque (`ten_…`), so they may stand in NATS subjects, KV keys and
logs; names never do. All of them sort by the time they were made.
"""

import itertools
import os
import random
import re
import time
from typing import Final, Literal

IdPrefix = Literal["ten", "dep", "tea", "key", "prv", "mod", "rte", "evt", "bud", "whk", "whs", "alr", "dlv"]

# Crockford's alphabet in lower case: no i, l, o, u, so an id survives being read out loud.
_PROCESS: Final = f"{0x8000 | random.getrandbits(14):04x}-{random.getrandbits(16):04x}"
_count = itertools.count(random.getrandbits(32))
_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
ID_PATTERN: Final = re.compile(r"[a-z]{3}_[0-9a-hjkmnp-tv-z]{26}")


def uuid7_int(now_us: int | None = None) -> int:
    """Return a UUIDv7 (RFC 9562) as a 128-bit integer.

    The 12 bits of `rand_a` hold the sub-millisecond part of the time (RFC 9562, method 3), so ids
    made by one process within a millisecond still sort. `now_us`: µs since the Unix epoch.
    """
    if now_us is None:
        now_us = time.time_ns() // 1000
    ms, us = divmod(now_us, 1000)
    rand = int.from_bytes(os.urandom(8), "big") & 0x3FFF_FFFF_FFFF_FFFF
    return (ms << 80) | (0x7 << 76) | (((us << 12) // 1000) << 64) | (0b10 << 62) | rand


def uuid7_text(now_us: int | None = None) -> str:
    """Return a UUIDv7 in its canonical 36-character form: the form of request ids.

    One is made for each request, so it costs no system call: behind the time stand 30 random bits of the process and
    a counter of 32 that starts anywhere. Unique, not secret.
    """
    if now_us is None:
        now_us = time.time_ns() // 1000
    ms, us = divmod(now_us, 1000)
    return f"{ms >> 16:08x}-{ms & 0xFFFF:04x}-7{(us << 12) // 1000:03x}-{_PROCESS}{next(_count) & 0xFFFF_FFFF:08x}"


def new_id(prefix: IdPrefix) -> str:
    """Return a new record id, such as `tea_06ee6mqp3w7fx9b5x0h2m4k8rz` (26 characters of base32)."""
    value = uuid7_int()
    return f"{prefix}_" + "".join(_ALPHABET[(value >> shift) & 31] for shift in range(125, -1, -5))
