"""Rows in PostgreSQL's binary COPY format, read back field by field."""

import struct
from typing import Any

import pytest

from sluicegate.contracts.usage import OUTCOMES, Attempt
from sluicegate.devstack.usage_events import usage_event
from sluicegate.usage_writer import rows

IDS = rows.SeriesIds(series=11, key=12)
ID_TEXT = "0190f0a0-1234-7abc-8def-001122334455"


def read_row(data: bytes) -> dict[str, bytes | None]:
    """Return the fields of one row; fails if bytes are left over."""
    (count,) = struct.unpack_from(">h", data)
    at, values = 2, []
    for _ in range(count):
        (length,) = struct.unpack_from(">i", data, at)
        at += 4
        values.append(None if length < 0 else data[at : at + length])
        at += max(length, 0)
    assert at == len(data)
    return dict(zip(rows.COLUMNS, values, strict=True))


def number(field: bytes | None) -> int:
    assert field is not None
    return int.from_bytes(field, "big", signed=True)


def row_of(**changes: Any) -> dict[str, bytes | None]:
    event = usage_event(request_id=ID_TEXT, **changes)
    return read_row(rows.row(event, rows.identity(event.request_id), IDS, edge=13, error_code=14))


def test_row_holds_every_value_in_its_column() -> None:
    row = row_of(
        started_at_us=946_684_800_000_001,
        duration_us=5_000_000_000,
        cost_nano_usd=10**15,
        input_tokens=1,
        output_tokens=2,
        cached_input_tokens=3,
        cache_write_5m_tokens=4,
        cache_write_1h_tokens=5,
        reasoning_tokens=6,
        provider_us=7,
        first_token_us=8,
        overhead_us=9,
        count=10,
        status=429,
        fallbacks=2,
        outcome="rate_limited",
        upstream_request_id="req_é",
    )
    assert row.pop("request_id") == bytes.fromhex(ID_TEXT.replace("-", ""))
    assert row.pop("upstream_request_id") == "req_é".encode()
    assert {name: number(value) for name, value in row.items()} == {
        "started_at": 1,
        "duration_us": 5_000_000_000,
        "cost_nano_usd": 10**15,
        "series": 11,
        "key": 12,
        "edge": 13,
        "error_code": 14,
        "input_tokens": 1,
        "output_tokens": 2,
        "cached_input_tokens": 3,
        "cache_write_5m_tokens": 4,
        "cache_write_1h_tokens": 5,
        "reasoning_tokens": 6,
        "provider_us": 7,
        "first_token_us": 8,
        "overhead_us": 9,
        "count": 10,
        "status": 429,
        "fallbacks": 2,
        "outcome": OUTCOMES.index("rate_limited"),
    }


def test_row_holds_minus_one_when_a_value_is_not_known() -> None:
    row = row_of(cost_nano_usd=None, provider_us=None, first_token_us=None, overhead_us=None)
    unknown = ("cost_nano_usd", "provider_us", "first_token_us", "overhead_us")
    assert {number(row[name]) for name in unknown} == {-1}
    assert row["upstream_request_id"] is None


def test_row_keeps_zero_apart_from_unknown() -> None:
    row = row_of(cost_nano_usd=0, provider_us=0, first_token_us=0, overhead_us=0)
    assert {number(row[name]) for name in ("cost_nano_usd", "provider_us", "first_token_us", "overhead_us")} == {0}


def test_times_are_cut_when_they_exceed_their_column() -> None:
    row = row_of(provider_us=2**40, first_token_us=2**31, overhead_us=2**31 - 1)
    assert {number(row[name]) for name in ("provider_us", "first_token_us", "overhead_us")} == {2**31 - 1}


def test_copy_body_is_framed_as_the_protocol_says() -> None:
    body = rows.copy_body([b"row"])
    assert body == b"PGCOPY\n\xff\r\n\0" + bytes(8) + b"row" + b"\xff\xff"


@pytest.mark.parametrize("text", ["", "no-uuid", "0190f0a0-1234-7abc-8def-0011223344", "é" * 16])
def test_identity_raises_when_it_is_no_uuid(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        rows.identity(text)


def test_plain_record_has_no_detail() -> None:
    assert not rows.has_detail(usage_event(upstream_request_id="req_1"))


@pytest.mark.parametrize(
    "changes",
    [
        {"end_user": "u"},
        {"traceparent": "00-1-2-01"},
        {"rule": "r"},
        {"tags": {"a": "b"}},
        {"attempts": (Attempt(provider="p", status=500, started_us=0, first_byte_us=None, end_us=9),)},
        {"guard_action": "blocked"},
        {"guard_counts": {"email": 2}},
    ],
    ids=str,
)
def test_record_has_detail_when_any_of_it_is_there(changes: dict[str, Any]) -> None:
    assert rows.has_detail(usage_event(**changes))
