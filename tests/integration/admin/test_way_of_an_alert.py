"""From the API over budget-alert to a receiver: what admin stores and commands is what the worker takes."""

from pathlib import Path
from typing import Any

from sluicegate.bus.connection import Connection
from sluicegate.contracts import subjects
from sluicegate.contracts.events import encode_event, join_events
from sluicegate.contracts.facts import BudgetThresholdReached
from sluicegate.devstack.room_process import RoomProcess
from sluicegate.devstack.waiting import until
from sluicegate.devstack.webhook_receiver import WebhookReceiver

from .conftest import KEY_RING, Running
from .test_budgets import make_budget
from .test_webhooks import make_webhook

START_US = 1_798_761_600_000_000


async def reach_threshold(nats: Connection, budget: dict[str, Any]) -> None:
    """Publish what an edge publishes."""
    event = BudgetThresholdReached(
        event_id=f"{budget['id']}:{budget['scope_id']}:{START_US // 1_000_000}:80",
        at_us=START_US + 1,
        tenant=budget["tenant"],
        budget=budget["id"],
        budget_name=budget["name"],
        scope=budget["scope"],
        scope_id=budget["scope_id"],
        period_start_us=START_US,
        period_end_us=START_US + 3_600_000_000,
        threshold_percent=80,
        limit_nano_usd=10_000_000_000,
        spent_nano_usd=8_000_000_001,
    )
    await nats.jetstream().publish(
        f"{subjects.BUDGET_THRESHOLD}.{event.tenant}",
        join_events([encode_event(event)]),
        headers={subjects.HEADER_MESSAGE_ID: event.event_id, subjects.HEADER_SCHEMA: "budget.threshold.v1"},
    )


async def delivered(admin: Running, **query: str) -> list[dict[str, Any]]:
    answer = await admin.client.get("/api/deliveries", params=query | {"state": "delivered"})
    found: list[dict[str, Any]] = answer.json()["data"]
    return found


async def test_test_alert_and_replay_arrive_signed_with_every_valid_secret(
    admin: Running, nats: Connection, postgres_dsn: str, nats_url: str, redis_url: str, tmp_path: Path
) -> None:
    worker = RoomProcess(
        "budget_alert",
        {
            "SLUICEGATE_POSTGRES_DSN": postgres_dsn,
            "SLUICEGATE_NATS_URL": nats_url,
            "SLUICEGATE_REDIS_URL": redis_url,
            "SLUICEGATE_KEY_RING": KEY_RING,
        },
        tmp_path / "budget-alert.log",
    )
    worker.start()
    try:
        async with WebhookReceiver() as receiver:
            budget = await make_budget(admin)
            webhook = await make_webhook(admin, tenant=budget["tenant"], url=receiver.url, allow_private_addresses=True)
            url = f"/api/webhooks/{webhook['id']}"

            command = (await admin.client.post(f"{url}/test")).json()["command"]
            (test,) = await receiver.until_received(1)
            assert test.is_signed_with(webhook["secret"])
            await until(lambda: delivered(admin, command=command), "the test to be recorded")

            rotated = (await admin.client.post(f"{url}/rotate-secret")).json()
            await reach_threshold(nats, budget)
            _, alerted = await receiver.until_received(2)
            assert [alerted.is_signed_with(secret) for secret in (webhook["secret"], rotated["secret"])] == [True] * 2
            (alert,) = (await admin.client.get("/api/alerts", params={"budget": budget["id"]})).json()["data"]
            assert (alert["event_id"], alert["spent_usd"]) == (alerted.headers["webhook-id"], "8.000000001")
            (delivery,) = await until(lambda: delivered(admin, alert=alert["id"]), "the delivery to be recorded")

            await admin.client.post(f"{url}/rotate-secret", json={"overlap_hours": 0})
            await admin.client.post(f"/api/deliveries/{delivery['id']}/replay")
            _, _, replayed = await receiver.until_received(3)
            assert (replayed.headers["webhook-id"], replayed.body) == (alerted.headers["webhook-id"], alerted.body)
            assert not replayed.is_signed_with(rotated["secret"])
    finally:
        await worker.stop_gently()
