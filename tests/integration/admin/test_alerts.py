"""Alerts and deliveries, as budget-alert has written them: listed newest first, filtered, replayed by command."""

from datetime import UTC, datetime
from typing import Any

from sluicegate.bus.connection import Connection
from sluicegate.contracts.ids import new_id

from .conftest import Running
from .test_webhooks import last_command

START, END = datetime(2027, 1, 1, tzinfo=UTC), datetime(2027, 2, 1, tzinfo=UTC)
SPENT_NANO_USD = 8_000_000_000_000_001


async def store_alert(database: Any, *, tenant: str | None, budget: str, threshold: int = 80) -> str:
    """Store an alert as budget-alert does; return its id."""
    alert = new_id("alr")
    await database.execute(
        "INSERT INTO alerts (id, event_id, tenant, budget, budget_name, scope, scope_id, period_start, period_end, "
        "threshold_percent, limit_nano_usd, spent_nano_usd, is_soft, reached_at) "
        "VALUES ($1, $2, $3, $4, 'Research', 'team', 'tea_1', $5, $6, $7, 9000000000000000, $8, true, $5)",
        alert,
        f"{budget}:tea_1:{int(START.timestamp())}:{threshold}",
        tenant,
        budget,
        START,
        END,
        threshold,
        SPENT_NANO_USD,
    )
    return alert


async def store_delivery(
    database: Any, *, alert: str | None, webhook: str, state: str, tenant: str | None = None, command: str | None = None
) -> str:
    """Store a delivery as budget-alert does; return its id."""
    delivery = new_id("dlv")
    await database.execute(
        "INSERT INTO deliveries (id, alert, endpoint, tenant, message_id, state, attempts, attempts_left, next_attempt_at, "
        "expires_at, last_status, last_error, command) "
        "VALUES ($1, $2, $3, $4, 'message', $5, 1, 5, $6, $6, 500, 'answered 500', $7)",
        delivery,
        alert,
        webhook,
        tenant,
        state,
        END,
        command,
    )
    return delivery


async def listed(admin: Running, noun: str, **query: str) -> list[str]:
    answer = await admin.client.get(f"/api/{noun}", params=query)
    assert answer.status_code == 200, answer.text
    return [record["id"] for record in answer.json()["data"]]


async def test_alert_is_shown_with_exact_money(admin: Running, database: Any) -> None:
    tenant, budget = new_id("ten"), new_id("bud")
    alert = await store_alert(database, tenant=tenant, budget=budget)
    shown = (await admin.client.get(f"/api/alerts/{alert}")).json()
    assert shown.pop("created_at")
    assert shown == {
        "id": alert,
        "event_id": f"{budget}:tea_1:1798761600:80",
        "tenant": tenant,
        "budget": budget,
        "budget_name": "Research",
        "scope": "team",
        "scope_id": "tea_1",
        "period_start": "2027-01-01T00:00:00Z",
        "period_end": "2027-02-01T00:00:00Z",
        "threshold_percent": 80,
        "limit_usd": "9000000",
        "spent_usd": "8000000.000000001",
        "soft": True,
        "reached_at": "2027-01-01T00:00:00Z",
    }
    assert (await admin.client.get(f"/api/alerts/{new_id('alr')}")).status_code == 404


async def test_alerts_are_listed_newest_first_and_filtered(admin: Running, database: Any) -> None:
    tenant, budget, other = new_id("ten"), new_id("bud"), new_id("bud")
    made = [await store_alert(database, tenant=tenant, budget=budget, threshold=place) for place in range(1, 6)]
    foreign = await store_alert(database, tenant=None, budget=other)
    assert (await listed(admin, "alerts"))[:6] == [foreign, *reversed(made)]
    assert await listed(admin, "alerts", tenant=tenant) == made[::-1]
    assert await listed(admin, "alerts", budget=other) == [foreign]
    assert await listed(admin, "alerts", budget=other, scope="key") == []
    assert await listed(admin, "alerts", scope_id="tea_1", tenant=tenant, limit="2") == [made[4], made[3]]
    page = (await admin.client.get("/api/alerts", params={"tenant": tenant, "limit": 2})).json()
    assert await listed(admin, "alerts", tenant=tenant, cursor=page["next"]) == made[2::-1]
    for query in ({"cursor": new_id("dlv")}, {"state": "dead"}, {"scope": "planet"}):
        assert (await admin.client.get("/api/alerts", params=query)).status_code == 422


async def test_deliveries_are_listed_newest_first_and_filtered(admin: Running, database: Any) -> None:
    tenant, webhook, command = new_id("ten"), new_id("whk"), new_id("evt")
    alert = await store_alert(database, tenant=tenant, budget=new_id("bud"))
    first = await store_delivery(database, alert=alert, webhook=webhook, state="dead", tenant=tenant)
    second = await store_delivery(database, alert=alert, webhook=new_id("whk"), state="delivered", tenant=tenant)
    test = await store_delivery(database, alert=None, webhook=webhook, state="pending", command=command)
    assert (await listed(admin, "deliveries"))[:3] == [test, second, first]
    for query, expected in (
        ({"webhook": webhook}, [test, first]),
        ({"alert": alert}, [second, first]),
        ({"tenant": tenant, "state": "dead"}, [first]),
        ({"tenant": tenant, "state": "delivered"}, [second]),
        ({"tenant": tenant, "state": "pending"}, []),
        ({"command": command}, [test]),
        ({"webhook": webhook, "cursor": test}, [first]),
    ):
        assert await listed(admin, "deliveries", **query) == expected, query
    for wrong in ({"state": "lost"}, {"cursor": alert}, {"endpoint": webhook}):
        assert (await admin.client.get("/api/deliveries", params=wrong)).status_code == 422


async def test_delivery_is_shown_with_its_attempts(admin: Running, database: Any) -> None:
    webhook = new_id("whk")
    pending = await store_delivery(database, alert=None, webhook=webhook, state="pending", command=new_id("evt"))
    dead = await store_delivery(database, alert=None, webhook=webhook, state="dead", command=new_id("evt"))
    await database.execute(
        "INSERT INTO delivery_attempts (delivery, number, started_at, ended_at, status, error) "
        "VALUES ($1, 2, $2, NULL, NULL, NULL), ($1, 1, $2, $2, 500, 'answered 500')",
        pending,
        START,
    )
    shown = (await admin.client.get(f"/api/deliveries/{pending}")).json()
    assert [(attempt["number"], attempt["status"], attempt["ended_at"]) for attempt in shown["attempts"]] == [
        (1, 500, "2027-01-01T00:00:00Z"),
        (2, None, None),
    ]
    assert (shown["alert"], shown["webhook"], shown["attempt_count"]) == (None, webhook, 1)
    assert shown["next_attempt_at"] == "2027-02-01T00:00:00Z"
    assert (await admin.client.get(f"/api/deliveries/{dead}")).json()["next_attempt_at"] is None
    assert (await admin.client.get(f"/api/deliveries/{new_id('dlv')}")).status_code == 404


async def test_replay_is_a_command(admin: Running, nats: Connection, database: Any) -> None:
    delivery = await store_delivery(database, alert=None, webhook=new_id("whk"), state="dead", command=new_id("evt"))
    answer = await admin.client.post(f"/api/deliveries/{delivery}/replay")
    assert answer.status_code == 202
    command = await last_command(nats)
    assert command["event_id"] == answer.json()["command"]
    assert (command["verb"], command["delivery"], command["endpoint"]) == ("replay", delivery, None)
    again = await admin.client.post(f"/api/deliveries/{delivery}/replay")
    assert again.json()["command"] != answer.json()["command"], "each is obeyed"
    unknown = await admin.client.post(f"/api/deliveries/{new_id('dlv')}/replay")
    assert (unknown.status_code, "/api/deliveries" in unknown.json()["error"]["advice"]) == (404, True)


async def test_nobody_writes_alerts_and_deliveries_here(admin: Running, database: Any) -> None:
    alert = await store_alert(database, tenant=None, budget=new_id("bud"))
    for method, path in (("DELETE", f"alerts/{alert}"), ("PATCH", f"alerts/{alert}"), ("POST", "deliveries")):
        assert (await admin.client.request(method, f"/api/{path}", json={})).status_code == 405
