"""Which records can be stored, and how messages share transactions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.contracts.usage import Attempt
from sluicegate.devstack.usage_events import usage_event
from sluicegate.usage_writer import policy

NOW_US = 1_800_000_000_000_000
WINDOW = policy.window_at(NOW_US, retention_days=30)


@pytest.mark.parametrize("started_at_us", [NOW_US, NOW_US - 30 * policy.US_PER_DAY, NOW_US + 2 * policy.US_PER_DAY - 1])
def test_record_is_admitted_when_its_time_is_kept(started_at_us: int) -> None:
    assert policy.refusal(usage_event(started_at_us=started_at_us), WINDOW) is None


@pytest.mark.parametrize("started_at_us", [NOW_US - 30 * policy.US_PER_DAY - 1, NOW_US + 2 * policy.US_PER_DAY])
def test_record_is_refused_when_its_time_is_outside(started_at_us: int) -> None:
    event = usage_event(started_at_us=started_at_us, request_id="00000000-0000-7000-8000-000000000000")
    assert policy.refusal(event, WINDOW) == "started_at is outside of what is kept"


@pytest.mark.parametrize(
    "changes",
    [
        *({name: value} for name in ("input_tokens", "output_tokens", "reasoning_tokens") for value in (-1, 2**31)),
        *({name: 2**31} for name in ("cached_input_tokens", "cache_write_5m_tokens", "cache_write_1h_tokens")),
        {"cost_nano_usd": -1},
        {"cost_nano_usd": 10**15 + 1},
        {"count": 0},
        {"count": 2**31},
        {"status": -1},
        {"status": 2**15},
        {"fallbacks": 2**15},
        {"price_version": 2**31},
        {"duration_us": -1},
        {"duration_us": 10**13 + 1},
        {"first_token_us": -1},
        {"provider_us": -1},
        {"overhead_us": -1},
        {"upstream_request_id": "a\0b"},
    ],
    ids=str,
)
def test_record_is_refused_when_a_value_is_out_of_range(changes: dict[str, int]) -> None:
    assert policy.refusal(usage_event(started_at_us=NOW_US, **changes), WINDOW)


@pytest.mark.parametrize(
    "changes",
    [
        {"input_tokens": 2**31 - 1, "output_tokens": 2**31 - 1, "cost_nano_usd": 10**15},
        {"cost_nano_usd": None, "price_version": None, "first_token_us": None, "provider_us": None},
        {"first_token_us": 2**40, "provider_us": 2**40, "overhead_us": 2**40, "duration_us": 10**13},
        {"count": 2**31 - 1, "status": 0, "fallbacks": 2**15 - 1},
    ],
    ids=str,
)
def test_record_is_admitted_when_values_are_at_their_ends(changes: dict[str, int | None]) -> None:
    assert policy.refusal(usage_event(started_at_us=NOW_US, **changes), WINDOW) is None


@pytest.mark.parametrize("name", ["a" * 1_025, "é" * 513, "a\0"])
def test_name_is_refused_when_it_cannot_be_indexed(name: str) -> None:
    assert policy.name_refusal(name)


@pytest.mark.parametrize("name", ["", "a" * 1_024, "é" * 512, "модель/с-именем 🙂"])
def test_name_is_taken_when_it_fits(name: str) -> None:
    assert policy.name_refusal(name) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"end_user": "\0"},
        {"tags": {"a": "b\0"}},
        {"tags": {"\0": "b"}},
        {"rule": "x\0"},
        {"attempts": (Attempt(provider="p\0", status=None, started_us=0, first_byte_us=None, end_us=1),)},
        {"guard_counts": {"\0": 1}},
    ],
    ids=str,
)
def test_nul_is_found_wherever_it_hides(changes: dict[str, object]) -> None:
    assert policy.has_nul(usage_event(**changes))


def test_nul_is_not_seen_where_there_is_only_its_spelling() -> None:
    assert not policy.has_nul(usage_event(end_user="\\u0000", tags={"a": "\\0"}))


@given(st.lists(st.integers(min_value=0, max_value=700)), st.integers(min_value=1, max_value=1_000))
def test_groups_keep_order_and_bound_whatever_the_sizes(sizes: list[int], most: int) -> None:
    groups = list(policy.groups(((size, index) for index, size in enumerate(sizes)), most))
    assert [index for group in groups for index in group] == list(range(len(sizes)))
    for group in groups:
        assert group
        assert len(group) == 1 or sum(sizes[index] for index in group) <= most
