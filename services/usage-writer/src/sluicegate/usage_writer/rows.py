"""Events as rows of the stage table, in PostgreSQL's binary COPY format. No I/O.

asyncpg's own record encoder looks up a codec per value and wants datetime and UUID objects: 6 µs and
more per row of this width. All columns but the last have a fixed width here, so one `pack` writes a row,
lengths included, in under 2 µs. NULL would make the width vary; so the stage holds 0 or -1 for it, and the
statement that moves rows on turns them into NULL (`NULLIF`).

Format: signature, flags, extension length; per row an int16 with the number of fields, per field an
int32 length and its bytes, big-endian, length -1 for NULL; int16 -1 at the end. Times are int64 µs
since 2000-01-01.
"""

import datetime as dt
import struct
import uuid
from collections.abc import Iterable
from typing import Final

import msgspec

from sluicegate.contracts.usage import COST_SOURCES, OUTCOMES, USAGE_SOURCES, UsageRecorded
from sluicegate.usage_writer.policy import INT4_MAX

NONE: Final = 0  # the id that stands for "no name"

# tenant, department, team, key, endpoint, requested_model, provider, upstream_model, streamed: a series, in
# the order of the columns of `usage_series`; then edge, error_code.
Names = tuple[str, str | None, str, str, str, str | None, str | None, str | None, bool, str, str | None]

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH_2000_US: Final = 946_684_800_000_000

# name, format character; in the order of the stage table.
_FIXED: Final = (
    ("started_at", "q"),
    ("duration_us", "q"),
    ("cost_nano_usd", "q"),
    ("provider_us", "q"),
    ("series", "i"),
    ("key", "i"),
    ("edge", "i"),
    ("input_tokens", "i"),
    ("output_tokens", "i"),
    ("first_token_us", "i"),
    ("overhead_us", "i"),
    ("price_version", "i"),
    ("cached_input_tokens", "i"),
    ("cache_write_5m_tokens", "i"),
    ("cache_write_1h_tokens", "i"),
    ("reasoning_tokens", "i"),
    ("error_code", "i"),
    ("count", "i"),
    ("status", "h"),
    ("outcome", "h"),
    ("usage_source", "h"),
    ("cost_source", "h"),
    ("fallbacks", "h"),
    ("request_id", "16s"),
)
COLUMNS: Final = (*(name for name, _ in _FIXED), "upstream_request_id")

_HEADER: Final = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
_TRAILER: Final = struct.pack(">h", -1)
_ROW: Final = struct.Struct(">h" + "".join("i" + code for _, code in _FIXED) + "i")
_8, _4, _2, _16 = 8, 4, 2, 16
_NULL: Final = -1

_OUTCOME_NUMBERS: Final = {name: number for number, name in enumerate(OUTCOMES)}
_USAGE_SOURCE_NUMBERS: Final = {name: number for number, name in enumerate(USAGE_SOURCES)}
_COST_SOURCE_NUMBERS: Final = {name: number for number, name in enumerate(COST_SOURCES)}

_to_json = msgspec.json.Encoder().encode


class Ids(msgspec.Struct, frozen=True):
    """The numbers that stand for a record's names."""

    series: int
    key: int
    edge: int
    error_code: int


def names_of(event: UsageRecorded) -> Names:
    """Return everything about a record that is stored as a number."""
    return (
        event.tenant,
        event.department,
        event.team,
        event.key,
        event.endpoint,
        event.requested_model,
        event.provider,
        event.upstream_model,
        event.streamed,
        event.edge,
        event.error_code,
    )


def identity(request_id: str) -> bytes:
    """Return the 16 bytes of a UUID. Raises ValueError if it is none."""
    raw = bytes.fromhex(request_id.replace("-", ""))
    if len(raw) != 16:
        raise ValueError("request_id is not a UUID")
    return raw


def row(event: UsageRecorded, request_id: bytes, ids: Ids) -> bytes:
    """Return a record as one row of the stage; `policy.refusal` has passed it.

    Times that are int4 in the table (36 minutes) are cut there.
    """
    upstream = event.upstream_request_id.encode() if event.upstream_request_id else None
    cost, provider_us, version = event.cost_nano_usd, event.provider_us, event.price_version
    first_token_us, overhead_us = event.first_token_us, event.overhead_us
    head = _ROW.pack(
        len(COLUMNS),
        _8,
        event.started_at_us - _EPOCH_2000_US,
        _8,
        event.duration_us,
        _8,
        _NULL if cost is None else cost,
        _8,
        _NULL if provider_us is None else provider_us,
        _4,
        ids.series,
        _4,
        ids.key,
        _4,
        ids.edge,
        _4,
        event.input_tokens,
        _4,
        event.output_tokens,
        _4,
        _NULL if first_token_us is None else min(first_token_us, INT4_MAX),
        _4,
        _NULL if overhead_us is None else min(overhead_us, INT4_MAX),
        _4,
        _NULL if version is None else version,
        _4,
        event.cached_input_tokens,
        _4,
        event.cache_write_5m_tokens,
        _4,
        event.cache_write_1h_tokens,
        _4,
        event.reasoning_tokens,
        _4,
        ids.error_code,
        _4,
        event.count,
        _2,
        event.status,
        _2,
        _OUTCOME_NUMBERS[event.outcome],
        _2,
        _USAGE_SOURCE_NUMBERS[event.usage_source],
        _2,
        _COST_SOURCE_NUMBERS[event.cost_source],
        _2,
        event.fallbacks,
        _16,
        request_id,
        _NULL if upstream is None else len(upstream),
    )
    return head if upstream is None else head + upstream


def copy_body(rows: Iterable[bytes]) -> bytes:
    """Return the rows as the body of a binary COPY."""
    return b"".join((_HEADER, *rows, _TRAILER))


# started_at, request_id, end_user, traceparent, rule, tags, attempts, guard; the last three are JSON.
Detail = tuple[dt.datetime, uuid.UUID, str | None, str | None, str | None, str | None, str | None, str | None]
DETAIL_COLUMNS: Final = (
    "started_at",
    "request_id",
    "end_user",
    "traceparent",
    "rule",
    "tags",
    "attempts",
    "guard",
)


def has_detail(event: UsageRecorded) -> bool:
    """Tell whether a record has any of what few have."""
    return bool(
        event.end_user
        or event.traceparent
        or event.rule
        or event.tags
        or event.attempts
        or event.guard_action
        or event.guard_counts
    )


def detail(event: UsageRecorded, request_id: bytes) -> Detail:
    """Return what goes into the detail table."""
    guard = {"action": event.guard_action, "counts": event.guard_counts}
    return (
        _EPOCH + dt.timedelta(microseconds=event.started_at_us),
        uuid.UUID(bytes=request_id),
        event.end_user,
        event.traceparent,
        event.rule,
        _json(event.tags) if event.tags else None,
        _json(event.attempts) if event.attempts else None,
        _json(guard) if event.guard_action or event.guard_counts else None,
    )


def _json(value: object) -> str:
    return _to_json(value).decode()
