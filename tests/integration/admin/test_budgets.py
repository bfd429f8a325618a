"""Budgets: exact, of any scope, told to the edges, and gone with what they are for."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from sluicegate.admin.fields import to_us
from sluicegate.bus.connection import Connection
from sluicegate.contracts import subjects

from .conftest import Running, unique
from .test_projection import catalogue

SCOPES = ("key", "team", "department", "tenant", "provider", "model")


async def scope_for(admin: Running, scope: str) -> tuple[dict[str, Any], str]:
    """Return a record that a budget may be for, and the tenant it belongs to."""
    tenant = (await admin.make("tenants", name=unique("tenant")))["id"]
    if scope == "tenant":
        return {"scope": scope, "scope_id": tenant}, tenant
    if scope == "department":
        record = await admin.make("departments", tenant=tenant, name="Research")
    elif scope in {"team", "key"}:
        record = await admin.make("teams", tenant=tenant, name="Search")
    else:
        record = await admin.make("providers", tenant=tenant, name=unique("provider"), base_url="https://x")
    if scope == "key":
        record = await admin.make("keys", team=record["id"], name="k")
    if scope == "model":
        record = await admin.make("models", provider=record["id"], name="m")
    return {"scope": scope, "scope_id": record["id"]}, tenant


async def make_budget(admin: Running, **more: Any) -> dict[str, Any]:
    where = {} if "scope" in more else (await scope_for(admin, "team"))[0]
    return await admin.make("budgets", **({"name": "b", "limit_usd": "10", "period": "month"} | where | more))


@pytest.mark.parametrize("scope", SCOPES)
async def test_budget_of_any_scope_belongs_to_its_tenant_and_is_told(
    admin: Running, nats: Connection, scope: str
) -> None:
    where, tenant = await scope_for(admin, scope)
    made = await make_budget(
        admin,
        **where,
        limit_usd="8999999.999999999",
        period="week",
        first_weekday="sunday",
        time_zone="Asia/Kathmandu",
        thresholds_percent=[1, 99, 150],
        soft=True,
    )
    assert made["tenant"] == tenant
    assert await catalogue(nats, "budget", made) == {
        "id": made["id"],
        "name": "b",
        "enabled": True,
        **where,
        "limit_nano_usd": 8_999_999_999_999_999,
        "period": "week",
        "first_weekday": 6,
        "time_zone": "Asia/Kathmandu",
        "thresholds_percent": [1, 99, 150],
        "is_soft": True,
        "counts_since_us": to_us(datetime.fromisoformat(made["counts_since"])),
    }
    assert made["limit_usd"] == "8999999.999999999"


async def test_budget_belongs_to_the_platform_when_its_provider_serves_all(admin: Running) -> None:
    model = await admin.make_model()
    for scope, scope_id in (("provider", model["provider"]), ("model", model["id"])):
        assert (await make_budget(admin, scope=scope, scope_id=scope_id))["tenant"] is None


async def test_budget_has_sensible_defaults(admin: Running) -> None:
    budget = await make_budget(admin)
    stated = ("first_weekday", "time_zone", "thresholds_percent", "soft", "enabled")
    assert [budget[name] for name in stated] == ["monday", "UTC", [50, 80, 100], False, True]


async def test_scope_may_have_many_budgets(admin: Running) -> None:
    where, tenant = await scope_for(admin, "key")
    periods = ("hour", "day", "week", "month", "quarter", "year", "month")
    made = [(await make_budget(admin, **where, period=period))["id"] for period in periods]
    await make_budget(admin)
    for query in (where, {"scope_id": where["scope_id"]}, {"tenant": tenant}, {"tenant": tenant, "name": "b"}):
        listed = (await admin.client.get("/api/budgets", params=query)).json()["data"]
        assert [budget["id"] for budget in listed] == made, query
    assert (await admin.client.get("/api/budgets", params=where | {"scope": "team"})).json()["data"] == []


async def test_budget_is_422_and_unchanged_when_a_field_makes_no_sense(admin: Running) -> None:
    where, _ = await scope_for(admin, "team")
    made = await make_budget(admin, **where)
    body = {"name": "b", "limit_usd": "10", "period": "month"} | where
    for field, value in (
        ("limit_usd", "9000000.000000001"),
        ("limit_usd", 12.5),
        ("limit_usd", "-1"),
        ("time_zone", "Europe/Atlantis"),
        ("thresholds_percent", [80, 50]),
        ("max_budget", "1"),
    ):
        for answer in (
            await admin.client.post("/api/budgets", json=body | {field: value}),
            await admin.client.patch(f"/api/budgets/{made['id']}", json={field: value}),
        ):
            assert answer.status_code == 422
            assert [problem["field"] for problem in answer.json()["error"]["fields"]] == [field]
    assert (await admin.client.get(f"/api/budgets/{made['id']}")).json()["version"] == 1


async def test_limit_is_taken_at_its_ends(admin: Running) -> None:
    for limit in ("0", "9000000", "0.000000001"):
        assert (await make_budget(admin, limit_usd=limit))["limit_usd"] == limit


async def test_budget_counts_anew_when_its_periods_change(admin: Running) -> None:
    made = await make_budget(admin)
    for change, counts_anew in (
        ({"period": "day"}, True),
        ({"limit_usd": "20"}, False),
        ({"time_zone": "Europe/Berlin"}, True),
        ({"thresholds_percent": []}, False),
        ({"first_weekday": "sunday"}, True),
        ({"soft": True}, False),
        ({"name": "other", "period": "day"}, False),
        ({"enabled": False}, False),
    ):
        changed = (await admin.client.patch(f"/api/budgets/{made['id']}", json=change)).json()
        assert changed.items() >= change.items()
        assert (changed["counts_since"] > made["counts_since"]) is counts_anew, change
        assert counts_anew or changed["counts_since"] == made["counts_since"], change
        made = changed


async def test_budget_counts_anew_when_it_is_enabled_again(admin: Running) -> None:
    made = await make_budget(admin, enabled=False)
    url = f"/api/budgets/{made['id']}"
    enabled = (await admin.client.patch(url, json={"enabled": True})).json()
    assert enabled["counts_since"] > made["counts_since"]
    assert datetime.fromisoformat(enabled["counts_since"]) <= datetime.now(UTC)


async def test_budget_moves_with_its_new_scope_to_another_tenant(admin: Running, nats: Connection) -> None:
    made = await make_budget(admin)
    where, tenant = await scope_for(admin, "key")
    url = f"/api/budgets/{made['id']}"
    half = await admin.client.patch(url, json={"scope": "key"})
    assert (half.status_code, half.json()["error"]["fields"][0]["field"]) == (422, "scope_id")
    moved = (await admin.client.patch(url, json=where)).json()
    assert (moved["tenant"], moved["scope"], moved["scope_id"]) == (tenant, "key", where["scope_id"])
    assert moved["counts_since"] > made["counts_since"]
    assert ((await catalogue(nats, "budget", made)) or {})["scope_id"] == where["scope_id"]


@pytest.mark.parametrize("scope", SCOPES)
async def test_budget_goes_with_what_it_is_for(admin: Running, nats: Connection, database: Any, scope: str) -> None:
    where, _ = await scope_for(admin, scope)
    budgets = [await make_budget(admin, **where) for _ in range(2)]
    other = await make_budget(admin)
    url = f"/api/{scope}s/{where['scope_id']}"
    deleted = (await admin.client.delete(url)).json()
    assert deleted["deleted_records"] == 3
    for budget in budgets:
        assert (await admin.client.get(f"/api/budgets/{budget['id']}")).status_code == 404
        assert await catalogue(nats, "budget", budget) is None
    query = "SELECT verb FROM audit WHERE record_id = $1 ORDER BY event_id"
    assert [row["verb"] for row in await database.fetch(query, budgets[0]["id"])] == ["created", "deleted"]
    assert await catalogue(nats, "budget", other) is not None


async def test_budgets_of_all_that_a_tenant_owns_go_with_it(admin: Running, nats: Connection) -> None:
    made = []
    tenant = (await admin.make("tenants", name=unique("tenant")))["id"]
    department = await admin.make("departments", tenant=tenant, name="Research")
    team = await admin.make("teams", tenant=tenant, name="Search", department=department["id"])
    key = await admin.make("keys", team=team["id"], name="k")
    provider = await admin.make("providers", tenant=tenant, name="p", base_url="https://x")
    model = await admin.make("models", provider=provider["id"], name="m")
    ids = (key["id"], team["id"], department["id"], tenant, provider["id"], model["id"])
    for scope, scope_id in zip(SCOPES, ids, strict=False):
        made.append(await make_budget(admin, scope=scope, scope_id=scope_id))
    for scope, scope_id in zip(("tenant", "provider", "model"), ids[3:], strict=True):
        made.append(await make_budget(admin, scope=scope, scope_id=scope_id))
    deleted = (await admin.client.delete(f"/api/tenants/{tenant}?cascade=true")).json()
    assert deleted["deleted_records"] == 6 + 9
    assert [await catalogue(nats, "budget", budget) for budget in made] == [None] * 9


async def test_budget_cannot_slip_onto_a_team_that_is_being_deleted(admin: Running, nats: Connection) -> None:
    for _ in range(5):
        where, _ = await scope_for(admin, "team")
        moving = await make_budget(admin)
        body = {"name": "b", "limit_usd": "1", "period": "day"} | where
        deleted, *others = await asyncio.gather(
            admin.client.delete(f"/api/teams/{where['scope_id']}"),
            *(admin.client.post("/api/budgets", json=body) for _ in range(3)),
            admin.client.patch(f"/api/budgets/{moving['id']}", json=where),
        )
        assert deleted.status_code == 200
        for answer in others:
            if answer.is_success:
                assert (await admin.client.get(f"/api/budgets/{answer.json()['id']}")).status_code == 404
                assert await catalogue(nats, "budget", answer.json()) is None
            else:
                assert answer.status_code == 422


async def test_budget_is_422_when_its_scope_was_deleted(admin: Running) -> None:
    where, _ = await scope_for(admin, "key")
    await admin.client.delete(f"/api/keys/{where['scope_id']}")
    body = {"name": "b", "limit_usd": "1", "period": "day"} | where
    answer = await admin.client.post("/api/budgets", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "unknown_reference")


async def test_lost_budget_is_told_again(admin: Running, nats: Connection) -> None:
    budget = await make_budget(admin)
    before = await catalogue(nats, "budget", budget)
    bucket = await nats.jetstream().key_value(subjects.CATALOGUE_BUCKET.name)
    await bucket.delete(f"budget.{budget['id']}")
    await admin.admin.comparison.compare()
    assert await catalogue(nats, "budget", budget) == before
