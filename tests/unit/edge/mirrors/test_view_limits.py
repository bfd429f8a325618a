"""What the view keeps of limits: worked out once, and never longer than it is true."""

import gc
from typing import Any

import msgspec
import pytest

from sluicegate.contracts.catalogue import (
    Budget,
    CatalogueRecord,
    Department,
    Key,
    Limits,
    Model,
    Provider,
    Route,
    Target,
    Team,
    Tenant,
)
from sluicegate.contracts.keys import key_digest, new_key
from sluicegate.devstack.ledger_stand_in import StandInStore
from sluicegate.edge.errors import Refusal
from sluicegate.edge.mirrors import view as view_module
from sluicegate.edge.mirrors.limits import UNBOUND, LimitFinder
from sluicegate.edge.mirrors.view import Principal, View
from sluicegate.edge.outbound.pool import Pools
from sluicegate.ledger.ledger import Ledger
from sluicegate.ledger.meters import Meter, MeterSet
from sluicegate.ledger.periods import period_of
from sluicegate.runtime.key_ring import KeyRing

NOW_US = 1_793_536_000_000_000
KEY = new_key()
ONE = Limits(requests_per_minute=1)


async def _nothing(_: Meter) -> int | None:
    return 0


class Known(View):
    """A view with one key, fed as the mirror feeds it."""

    def __init__(self) -> None:
        ledger = Ledger(StandInStore(), spent_so_far=_nothing)
        finder = LimitFinder(ledger, lambda *_: None)
        super().__init__(Pools(), KeyRing.parse(KeyRing.generate()), finder, lambda: True)
        self.put(
            Tenant(id="ten_1", name="acme"),
            Department(id="dep_1", name="research", tenant="ten_1"),
            Team(id="tea_1", name="search", tenant="ten_1", department="dep_1"),
            Provider(id="prv_1", name="fake", base_url="http://127.0.0.1:1/v1"),
            Model(id="mod_1", name="m", provider="prv_1"),
            Route(id="rte_1", name="demo", alias="demo", targets=(Target(model="mod_1"),)),
        )
        self.put_key()

    def put(self, *records: CatalogueRecord) -> None:
        for record in records:
            self.apply("catalogue", f"{type(record).__name__.lower()}.{record.id}", msgspec.json.encode(record))

    def put_key(self, **fields: Any) -> None:
        defaults = {"id": "key_1", "name": "k", "tenant": "ten_1", "team": "tea_1", "department": "dep_1"}
        record = Key(prefix="sgk_", **{**defaults, **fields})
        self.apply("keys", key_digest(KEY.encode()), msgspec.json.encode(record))

    @property
    def caller(self) -> Principal:
        return self.principal(KEY.encode())

    def limits(self, end_user: str | None = None, at_us: int = NOW_US) -> list[tuple[str, int]]:
        """What binds the caller: scope and limit."""
        return [(meter.scope, meter.limit) for meter in self.bounds(self.caller, end_user, at_us).meters.all]


@pytest.fixture
def view() -> Known:
    return Known()


def budget(**fields: Any) -> Budget:
    defaults = {"id": "bud_1", "name": "purse", "scope": "tenant", "scope_id": "ten_1", "period": "hour"}
    return Budget(limit_nano_usd=5, **{**defaults, **fields})


def test_bounds_are_worked_out_once_and_anew_after_each_change(view: Known) -> None:
    view.put_key(limits=ONE)
    first = view.bounds(view.caller, None, NOW_US)
    assert view.bounds(view.caller, None, NOW_US + 1) is first
    generation = view.generation
    assert view.caller.generation == generation
    view.put(Tenant(id="ten_2", name="another"))
    assert view.generation > generation
    assert view.caller.generation == view.generation
    assert view.bounds(view.caller, None, NOW_US) is not first


def test_every_parent_has_its_place(view: Known) -> None:
    assert view.limits() == []
    view.put_key(limits=Limits(open_requests=1))
    view.put(Team(id="tea_1", name="search", tenant="ten_1", department="dep_1", limits=Limits(open_requests=2)))
    view.put(Department(id="dep_1", name="research", tenant="ten_1", limits=Limits(open_requests=3)))
    view.put(Tenant(id="ten_1", name="acme", limits=Limits(open_requests=4), end_user_limits=Limits(open_requests=5)))
    assert view.limits("ann") == [("key", 1), ("team", 2), ("department", 3), ("tenant", 4), ("end_user", 5)]
    assert view.limits() == [("key", 1), ("team", 2), ("department", 3), ("tenant", 4)]
    view.put_key(department=None)
    assert view.limits() == [("team", 2), ("tenant", 4)]


def test_bounds_are_made_anew_at_the_end_of_a_period_and_back(view: Known) -> None:
    view.put(budget())
    _, end_us = period_of("hour", "UTC", 0, NOW_US)
    [meter] = view.bounds(view.caller, None, end_us - 1).meters.all
    [following] = view.bounds(view.caller, None, end_us).meters.all
    assert following.start_us == end_us == meter.end_us
    assert view.bounds(view.caller, None, end_us - 1).meters.all == (meter,)


def test_end_users_are_told_apart_only_where_they_are_limited(view: Known) -> None:
    view.put_key(limits=ONE)
    assert view.bounds(view.caller, "ann", NOW_US) is view.bounds(view.caller, "bob", NOW_US)
    view.put(Tenant(id="ten_1", name="acme", end_user_limits=ONE))
    ann, bob = (view.bounds(view.caller, user, NOW_US) for user in ("ann", "bob"))
    assert [meter.scope_id for meter in ann.meters.requests] == ["key_1", "ten_1:ann"]
    assert [meter.scope_id for meter in bob.meters.requests] == ["key_1", "ten_1:bob"]
    assert ann.meters.requests[0] is bob.meters.requests[0]


def test_end_users_of_different_tenants_never_share_a_meter(view: Known) -> None:
    view.put(Tenant(id="ten_1", name="acme", end_user_limits=ONE), Tenant(id="ten_2", name="b", end_user_limits=ONE))
    view.put(Team(id="tea_2", name="t", tenant="ten_2"))
    [one] = view.bounds(view.caller, "ann", NOW_US).meters.all
    view.put_key(id="key_2", tenant="ten_2", team="tea_2", department=None)
    [other] = view.bounds(view.caller, "ann", NOW_US).meters.all
    assert one is not other


def test_only_so_many_end_users_are_kept_for_all_keys_together(view: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_module, "_MAX_KEPT_END_USERS", 10)
    view.put(Tenant(id="ten_1", name="acme", end_user_limits=ONE))
    callers = [view._principal_of(view.caller.key) for _ in range(5)]
    for user in map(str, range(25)):
        for caller in callers:
            bounds = view.bounds(caller, user, NOW_US)
            assert [meter.scope_id for meter in bounds.meters.all] == [f"ten_1:{user}"]
            assert view.bounds(caller, user, NOW_US) is bounds
    sets = [getattr(one, "all", ()) for one in gc.get_objects() if isinstance(one, MeterSet)]
    assert 0 < sum(any(meter.scope == "end_user" for meter in meters) for meters in sets) <= 10


def test_only_so_many_callers_are_kept_and_none_of_before_a_change(
    view: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_module, "_MAX_KEPT_CREDENTIALS", 3)
    texts = [new_key().encode() for _ in range(5)]
    for limit in (1, 2):
        for number, text in enumerate(texts):
            record = Key(
                id=f"key_{number}",
                name="k",
                tenant="ten_1",
                team="tea_1",
                prefix="",
                limits=Limits(open_requests=limit),
            )
            view.apply("keys", key_digest(text), msgspec.json.encode(record))
        for number, text in enumerate(texts + texts[::-1]):
            caller = view.principal(text)
            assert caller is view.principal(text)
            assert caller.key.id == f"key_{min(number, 9 - number)}"
            assert [meter.limit for meter in view.bounds(caller, None, NOW_US).meters.all] == [limit]
            assert len(view._principals) <= 3
    view.apply("keys", key_digest(texts[0]), None)
    with pytest.raises(Refusal):
        view.principal(texts[0])
    assert texts[0] not in view._principals


async def test_target_is_asked_about_limits_only_if_it_has_any(view: Known) -> None:
    def is_limited() -> bool:
        [target] = view.targets(view.caller, "demo")
        assert (view.target_bounds(target, NOW_US) is not UNBOUND) == target.is_limited
        return target.is_limited

    assert not is_limited()
    view.put(Model(id="mod_1", name="m", provider="prv_1", limits=ONE))
    assert is_limited()
    view.put(Model(id="mod_1", name="m", provider="prv_1"))
    assert not is_limited()
    view.put(Provider(id="prv_1", name="fake", base_url="http://127.0.0.1:1/v1", limits=ONE))
    assert is_limited()
    view.put(Provider(id="prv_1", name="fake", base_url="http://127.0.0.1:1/v1"))
    for scope, scope_id in (("provider", "prv_1"), ("model", "mod_1")):
        view.put(budget(scope=scope, scope_id=scope_id))
        assert is_limited()
        view.apply("catalogue", "budget.bud_1", None)
        assert not is_limited()


def test_budgets_survive_a_bucket_that_is_read_anew(view: Known) -> None:
    view.put(budget())
    records = {
        "tenant.ten_1": Tenant(id="ten_1", name="acme"),
        "department.dep_1": Department(id="dep_1", name="research", tenant="ten_1"),
        "team.tea_1": Team(id="tea_1", name="search", tenant="ten_1"),
        "budget.bud_2": budget(id="bud_2", scope="team", scope_id="tea_1"),
    }
    view.replace("catalogue", {name: msgspec.json.encode(record) for name, record in records.items()})
    assert [meter.budget_id for meter in view.bounds(view.caller, None, NOW_US).meters.all] == ["bud_2"]


def test_budget_that_cannot_be_read_leaves_the_one_before_it(view: Known) -> None:
    view.put(budget())
    view.apply("catalogue", "budget.bud_1", b'{"id":"bud_1","limit_nano_usd":"much"}')
    assert view.bad_records == 1
    assert view.limits() == [("tenant", 5)]
