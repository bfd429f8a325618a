"""Pure decisions: which records can be stored, and how messages share transactions. No await, no SQL."""

from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeVar

import msgspec

from sluicegate.contracts.usage import UsageRecorded

INT2_MAX: Final = 2**15 - 1
INT4_MAX: Final = 2**31 - 1
# A million USD and 115 days: far above any request, and far enough below 2^63 that a broken record, or a
# thousand, cannot make the sums of good ones overflow.
MAX_COST_NANO_USD: Final = 10**15
MAX_DURATION_US: Final = 10**13
# A row of an index may not exceed a third of a page.
MAX_NAME_BYTES: Final = 1_024
MAX_NAME_CHARACTERS: Final = MAX_NAME_BYTES // 4
US_PER_DAY: Final = 86_400_000_000
AHEAD_DAYS: Final = 2

T = TypeVar("T")


class Window(msgspec.Struct, frozen=True):
    """The times that can be stored, µs since the epoch: [start_us, end_us)."""

    start_us: int
    end_us: int


def window_at(now_us: int, retention_days: int) -> Window:
    """Return the window: as old as records are kept, and ahead as far as clocks may be wrong."""
    return Window(now_us - retention_days * US_PER_DAY, now_us + AHEAD_DAYS * US_PER_DAY)


def refusal(event: UsageRecorded, window: Window) -> str | None:
    """Return why a record cannot be stored, None if it can. Runs for each record: only comparisons.

    What is looked at once per new value is not looked at here: see `name_refusal` and `has_nul`.
    """
    if not window.start_us <= event.started_at_us < window.end_us:
        return "started_at is outside of what is kept"
    counts = (
        event.input_tokens,
        event.cached_input_tokens,
        event.cache_write_5m_tokens,
        event.cache_write_1h_tokens,
        event.output_tokens,
        event.reasoning_tokens,
    )
    if min(counts) < 0 or max(counts) > INT4_MAX:
        return "a token count is out of range"
    if not (1 <= event.count <= INT4_MAX and 0 <= event.fallbacks <= INT2_MAX and 0 <= event.status <= INT2_MAX):
        return "count, fallbacks or status is out of range"
    if event.cost_nano_usd is not None and not 0 <= event.cost_nano_usd <= MAX_COST_NANO_USD:
        return "cost_nano_usd is out of range"
    if event.price_version is not None and not 0 <= event.price_version <= INT4_MAX:
        return "price_version is out of range"
    if not 0 <= event.duration_us <= MAX_DURATION_US:
        return "duration_us is out of range"
    if event.upstream_request_id and "\0" in event.upstream_request_id:
        return "upstream_request_id holds a NUL character"
    if (event.first_token_us or 0) < 0 or (event.provider_us or 0) < 0 or (event.overhead_us or 0) < 0:
        return "a duration is negative"
    return None


def name_refusal(name: str) -> str | None:
    """Return why a name cannot be stored. Runs once per new name."""
    if len(name) > MAX_NAME_CHARACTERS and len(name.encode()) > MAX_NAME_BYTES:
        return "a name is too long"
    if "\0" in name:
        return "a name holds a NUL character"
    return None


def has_nul(value: Any) -> bool:
    """Tell whether any string in `value` (an event, or what JSON is made of) holds a NUL."""
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, msgspec.Struct):
        return has_nul(msgspec.to_builtins(value))
    if isinstance(value, dict):
        return any(has_nul(key) or has_nul(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return any(has_nul(item) for item in value)
    return False


def groups(items: Iterable[tuple[int, T]], most: int) -> Iterator[list[T]]:
    """Cut (size, item) pairs into runs whose sizes sum up to at most `most`; a larger item stands alone."""
    group: list[T] = []
    total = 0
    for size, item in items:
        if group and total + size > most:
            yield group
            group, total = [], 0
        group.append(item)
        total += size
    if group:
        yield group
