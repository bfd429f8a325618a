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

from sluicegate.contracts.usage import OUTCOMES, CostSource, UsageRecorded, UsageSource
from sluicegate.usage_writer.policy import INT4_MAX

NONE: Final = 0  # the id that stands for "no name"

NO_VERSION: Final = -1
# tenant, department, team, key, endpoint, requested_model, provider, upstream_model, price_version,
# usage_source, cost_source, streamed: what makes a series, in the order of the columns of `usage_series`.
Names = tuple[
    str, str | None, str, str, str, str | None, str | None, str | None, int | None, UsageSource, CostSource, bool
]

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH_2000_US: Final = 946_684_800_000_000

# name, format character; in the order of the stage table.
_FIXED: Final = (
    ("started_at", "q"),
    ("duration_us", "q"),
    ("cost_nano_usd", "q"),
    ("series", "i"),
    ("key", "i"),
    ("edge", "i"),
    ("input_tokens", "i"),
    ("output_tokens", "i"),
    ("provider_us", "i"),
    ("first_token_us", "i"),
    ("overhead_us", "i"),
    ("cached_input_tokens", "i"),
    ("cache_write_5m_tokens", "i"),
    ("cache_write_1h_tokens", "i"),
    ("reasoning_tokens", "i"),
    ("error_code", "i"),
    ("count", "i"),
    ("status", "h"),
    ("outcome", "h"),
    ("fallbacks", "h"),
    ("request_id", "16s"),
)
COLUMNS: Final = (*(name for name, _ in _FIXED), "upstream_request_id")

_HEADER: Final = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
_TRAILER: Final = struct.pack(">h", -1)
_ROW: Final = struct.Struct(">h" + "".join("i" + code for _, code in _FIXED) + "i")
_NULL: Final = -1

_OUTCOME_NUMBERS: Final = {name: number for number, name in enumerate(OUTCOMES)}

_to_json = msgspec.json.Encoder().encode


class SeriesIds(msgspec.Struct, frozen=True):
    """The number of a series, and that of its key, which rows hold too: it has an index."""

    series: int
    key: int


def names_of(event: UsageRecorded) -> Names:
    """Return who called what through whom."""
    return (
        event.tenant,
        event.department,
        event.team,
        event.key,
        event.endpoint,
        event.requested_model,
        event.provider,
        event.upstream_model,
        event.price_version,
        event.usage_source,
        event.cost_source,
        event.streamed,
    )


def identity(request_id: str) -> bytes:
    """Return the 16 bytes of a UUID. Raises ValueError if it is none."""
    raw = bytes.fromhex(request_id.replace("-", ""))
    if len(raw) != 16:
        raise ValueError("request_id is not a UUID")
    return raw


def row(event: UsageRecorded, request_id: bytes, ids: SeriesIds, edge: int, error_code: int) -> bytes:
    """Return a record as one row of the stage; `policy.refusal` has passed it.

    Times that are int4 in the table (36 minutes) are cut there.
    """
    upstream = event.upstream_request_id.encode() if event.upstream_request_id else b""
    # fmt: off
    return _ROW.pack(
        len(COLUMNS),
        8, event.started_at_us - _EPOCH_2000_US,
        8, event.duration_us,
        8, _NULL if event.cost_nano_usd is None else event.cost_nano_usd,
        4, ids.series,
        4, ids.key,
        4, edge,
        4, event.input_tokens,
        4, event.output_tokens,
        4, _cut(event.provider_us),
        4, _cut(event.first_token_us),
        4, _cut(event.overhead_us),
        4, event.cached_input_tokens,
        4, event.cache_write_5m_tokens,
        4, event.cache_write_1h_tokens,
        4, event.reasoning_tokens,
        4, error_code,
        4, event.count,
        2, event.status,
        2, _OUTCOME_NUMBERS[event.outcome],
        2, event.fallbacks,
        16, request_id,
        len(upstream) or _NULL,
    ) + upstream
    # fmt: on


def _cut(duration_us: int | None) -> int:
    return _NULL if duration_us is None else min(INT4_MAX, duration_us)


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
