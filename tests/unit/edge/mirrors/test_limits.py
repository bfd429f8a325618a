"""Which meters a request is checked against, and what its answer says of them."""

from typing import Any

import pytest

from sluicegate.contracts.catalogue import Budget, Limits
from sluicegate.devstack.ledger_stand_in import StandInStore
from sluicegate.edge.mirrors.limits import UNBOUND, Bounds, LimitFinder, Scoped, utc_text
from sluicegate.ledger.ledger import Ledger
from sluicegate.ledger.meters import FOREVER_US, Meter
from sluicegate.ledger.periods import period_of

NOW_US = 1_793_536_000_000_000  # 2026-11-01T12:26:40Z
HOUR_US = 3_600_000_000


async def _nothing(_: Meter) -> int | None:
    return 0


class Finder:
    """A finder, and what it was told to watch."""

    def __init__(self) -> None:
        self.watched: list[tuple[Meter, str, str | None]] = []
        self.ledger = Ledger(StandInStore(), spent_so_far=_nothing)
        self._finder = LimitFinder(self.ledger, lambda meter, of, tenant: self.watched.append((meter, of.id, tenant)))

    def bounds(self, *scopes: Scoped, budgets: tuple[Budget, ...] = (), at_us: int = NOW_US) -> Bounds:
        index: dict[tuple[str, str], dict[str, Budget]] = {}
        for budget in budgets:
            index.setdefault((budget.scope, budget.scope_id), {})[budget.id] = budget
        return self._finder.bounds(scopes, index, "ten_1", at_us)


@pytest.fixture
def finder() -> Finder:
    return Finder()


def scoped(scope: str = "key", **limits: int | None) -> Scoped:
    return Scoped(scope, f"{scope}_1", f"this {scope}", Limits(**limits))


def budget(**fields: Any) -> Budget:
    defaults = {"id": "bud_1", "name": "purse", "scope": "key", "scope_id": "key_1", "period": "day"}
    return Budget(**{"limit_nano_usd": 1_000, **defaults, **fields})


def test_nothing_is_bound_when_no_limit_is_set(finder: Finder) -> None:
    assert finder.bounds(scoped(), scoped("team")) is UNBOUND
    assert not UNBOUND.is_bound
    assert UNBOUND.header_lines(UNBOUND) == b""


def test_each_limit_is_a_meter_of_its_scope(finder: Finder) -> None:
    of = finder.bounds(
        scoped(requests_per_minute=1, tokens_per_minute=2, open_requests=3), scoped("team", open_requests=4)
    )
    assert [(meter.resource, meter.scope, meter.scope_id, meter.limit) for meter in of.meters.all] == [
        ("requests", "key", "key_1", 1),
        ("tokens", "key", "key_1", 2),
        ("open", "key", "key_1", 3),
        ("open", "team", "team_1", 4),
    ]
    assert set(of.names.values()) == {"this key", "this team"}
    assert of.takes_amounts
    assert not of.has_hard_budget


def test_amounts_are_not_needed_where_only_requests_are_limited(finder: Finder) -> None:
    """BL-74."""
    assert not finder.bounds(scoped(requests_per_minute=1, open_requests=1)).takes_amounts


@pytest.mark.parametrize(
    ("limits", "resource"),
    [({"requests_per_minute": 0}, "requests"), ({"tokens_per_minute": 0}, "tokens"), ({"open_requests": 0}, "open")],
)
def test_limit_of_zero_closes_and_makes_no_meter(finder: Finder, limits: dict[str, int], resource: str) -> None:
    of = finder.bounds(scoped(), scoped("team", **limits))
    assert (of.closed_resource, of.closed, of.is_bound) == (resource, "this team", True)
    assert of.meters.all == ()


def test_hard_budget_of_zero_closes_and_a_soft_one_does_not(finder: Finder) -> None:
    hard = finder.bounds(scoped(), budgets=(budget(limit_nano_usd=0),))
    assert (hard.closed_resource, hard.closed) == ("budget", "the budget 'purse' of this key")
    assert finder.watched == []
    soft = finder.bounds(scoped(), budgets=(budget(limit_nano_usd=0, is_soft=True),))
    assert soft.closed_resource is None
    assert [meter.limit for meter in soft.soft] == [0]


def test_same_limit_is_the_same_meter_and_another_one_changes_it(finder: Finder) -> None:
    [one] = finder.bounds(scoped(requests_per_minute=5)).meters.all
    [other] = finder.bounds(scoped(requests_per_minute=9)).meters.all
    assert one is other
    assert one.limit == 9


def test_budgets_bind_only_the_scope_they_are_for(finder: Finder) -> None:
    of = finder.bounds(
        scoped(),
        scoped("team"),
        budgets=(
            budget(),
            budget(id="bud_2", scope="team", scope_id="team_1"),
            budget(id="bud_3", scope="team", scope_id="team_2"),
            budget(id="bud_4", scope="tenant", scope_id="key_1"),
            budget(id="bud_5", enabled=False),
        ),
    )
    assert [meter.budget_id for meter in of.meters.budgets] == ["bud_1", "bud_2"]
    assert [(name, tenant) for _, name, tenant in finder.watched] == [("bud_1", "ten_1"), ("bud_2", "ten_1")]


def test_bounds_end_with_the_first_period_and_the_next_ones_are_other_meters(finder: Finder) -> None:
    budgets = (budget(period="hour"), budget(id="bud_2", period="month", time_zone="Asia/Kathmandu"))
    of = finder.bounds(scoped(), budgets=budgets)
    start_us, end_us = period_of("hour", "UTC", 0, NOW_US)
    assert (of.since_us, of.until_us) == (start_us, end_us)
    hour, month = of.meters.budgets
    following = finder.bounds(scoped(), budgets=budgets, at_us=end_us)
    assert following.meters.budgets[0] is not hour
    assert following.meters.budgets[0].start_us == end_us
    assert following.meters.budgets[1] is month
    last = finder.bounds(scoped(), budgets=budgets, at_us=end_us - 1)
    assert last.meters.budgets == of.meters.budgets


def test_bounds_without_a_budget_never_end(finder: Finder) -> None:
    of = finder.bounds(scoped(requests_per_minute=1))
    assert (of.since_us, of.until_us) == (0, FOREVER_US)


@pytest.mark.parametrize(("counts_since", "is_known_zero"), [(-HOUR_US, True), (0, True), (1, False), (HOUR_US, False)])
def test_period_that_a_budget_did_not_see_begin_is_seeded(
    finder: Finder, counts_since: int, is_known_zero: bool
) -> None:
    start_us, _ = period_of("day", "UTC", 0, NOW_US)
    [meter] = finder.bounds(scoped(), budgets=(budget(counts_since_us=start_us + counts_since),)).meters.all
    assert meter.zero_from_us == (start_us if is_known_zero else 0)


def test_header_lines_are_in_the_form_of_openai(finder: Finder) -> None:
    of = finder.bounds(scoped(requests_per_minute=60, tokens_per_minute=9_000))
    of.meters.requests[0].left, of.meters.requests[0].spare = 50, 7
    of.meters.tokens[0].left, of.meters.tokens[0].spare = 0, 0
    assert of.header_lines(UNBOUND) == (
        b"x-ratelimit-limit-requests: 60\r\nx-ratelimit-remaining-requests: 57\r\nx-ratelimit-reset-requests: 1m0s\r\n"
        b"x-ratelimit-limit-tokens: 9000\r\nx-ratelimit-remaining-tokens: 0\r\nx-ratelimit-reset-tokens: 1m0s\r\n"
    )


@pytest.mark.parametrize(
    ("left", "spare", "expected"), [(None, 0, 60), (100, 100, 60), (-5, 0, 0), (3, 4, 7), (-1, 2, 1)]
)
def test_remainder_lies_between_nothing_and_the_limit(
    finder: Finder, left: int | None, spare: int, expected: int
) -> None:
    of = finder.bounds(scoped(requests_per_minute=60))
    meter = of.meters.requests[0]
    meter.left, meter.spare, meter.held = left, spare, spare
    assert b"remaining-requests: %d\r\n" % expected in of.header_lines(UNBOUND)
    assert expected == meter.remaining()


def test_the_tightest_of_caller_and_target_is_told(finder: Finder) -> None:
    caller = finder.bounds(scoped(requests_per_minute=60), scoped("team", requests_per_minute=50))
    target = finder.bounds(scoped("provider", requests_per_minute=40, tokens_per_minute=5))
    assert b"limit-requests: 50\r\n" in caller.header_lines(UNBOUND)
    assert b"tokens" not in caller.header_lines(UNBOUND)
    assert b"limit-requests: 40\r\n" in caller.header_lines(target)
    assert b"limit-tokens: 5\r\n" in caller.header_lines(target)
    assert UNBOUND.header_lines(target) == target.header_lines(UNBOUND)


def test_exceeded_soft_budget_is_told_once_and_a_hard_one_never(finder: Finder) -> None:
    of = finder.bounds(scoped(), budgets=(budget(is_soft=True), budget(id="bud_2", is_soft=True), budget(id="bud_3")))
    assert of.header_lines(UNBOUND) == b""
    for meter in of.meters.budgets:
        meter.spent = 999
    assert of.header_lines(UNBOUND) == b""
    of.meters.budgets[2].spent = 1_000
    assert of.header_lines(UNBOUND) == b""
    for meter in of.soft:
        meter.spent = 1_000
    assert of.header_lines(UNBOUND) == b"x-sluicegate-warning: budget_soft_exceeded\r\n"
    assert UNBOUND.header_lines(of) == of.header_lines(UNBOUND)


def test_times_are_told_in_utc() -> None:
    assert utc_text(NOW_US) == "2026-11-01T12:26Z"
