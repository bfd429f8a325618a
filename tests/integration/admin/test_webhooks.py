"""Webhooks: their secrets are shown once and overlap, private addresses need to be allowed, a test is a command."""

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sluicegate.bus.connection import Connection
from sluicegate.contracts import subjects
from sluicegate.contracts.catalogue import SealedSecret
from sluicegate.contracts.ids import new_id
from sluicegate.devstack.servers import NatsServer
from sluicegate.devstack.waiting import until
from sluicegate.runtime.key_ring import KeyRing

from .conftest import KEY_RING, Running, StartAdmin, unique
from .test_projection import audit_messages, outbox_is_empty, value

URL = "https://1.1.1.1/services/T0/B0/very-secret-path"


async def make_webhook(admin: Running, **more: Any) -> dict[str, Any]:
    return await admin.make("webhooks", **({"name": unique("webhook"), "url": URL} | more))


async def opened_secrets(database: Any, webhook: dict[str, Any]) -> list[str]:
    """Return the secrets that a delivery is signed with now, as the worker finds them."""
    rows = await database.fetch(
        "SELECT secret_key_id, secret_nonce, secret_ciphertext FROM webhook_secrets "
        "WHERE endpoint = $1 AND (expires_at IS NULL OR expires_at > now()) ORDER BY id DESC",
        webhook["id"],
    )
    ring = KeyRing.parse(KEY_RING)
    return [
        ring.open(SealedSecret(key_id=i, nonce=n, ciphertext=c), webhook["id"].encode()).decode() for i, n, c in rows
    ]


async def last_command(nats: Connection) -> dict[str, Any]:
    message = await nats.jetstream().get_last_msg(subjects.ALERTS.name, subjects.ALERTS_COMMAND)
    assert message.headers is not None
    (command,) = json.loads(message.data or b"")
    assert message.headers[subjects.HEADER_SCHEMA] == "alerts.commanded.v1"
    assert message.headers[subjects.HEADER_MESSAGE_ID] == command["event_id"]
    found: dict[str, Any] = command
    return found


async def test_secret_is_shown_once_and_stored_sealed(admin: Running, database: Any) -> None:
    made = await make_webhook(admin)
    url = f"/api/webhooks/{made['id']}"
    rotated = (await admin.client.post(f"{url}/rotate-secret")).json()
    assert await opened_secrets(database, made) == [rotated["secret"], made["secret"]]
    answers = [
        await admin.client.get(url),
        await admin.client.get("/api/webhooks"),
        await admin.client.patch(url, json={"format": "slack"}),
    ]
    for secret in (made["secret"], rotated["secret"]):
        assert [secret in answer.text for answer in answers] == [False] * 3
        tables = await database.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        for (table,) in tables:
            query = f"SELECT count(*) FROM {table} t WHERE t::text LIKE '%' || $1 || '%'"
            assert await database.fetchval(query, secret) == 0, table


async def test_earlier_secrets_stay_valid_for_the_overlap(admin: Running, database: Any) -> None:
    made = await make_webhook(admin)
    url = f"/api/webhooks/{made['id']}/rotate-secret"
    (present,) = made["secrets"]
    assert present["expires_at"] is None

    first = (await admin.client.post(url)).json()
    assert [secret["expires_at"] is None for secret in first["secrets"]] == [True, False]
    assert first["secrets"][1]["id"] == present["id"]
    in_a_day = datetime.now(UTC) + timedelta(hours=24)
    assert abs(datetime.fromisoformat(first["secrets"][1]["expires_at"]) - in_a_day) < timedelta(minutes=5)
    assert first["version"] == 2

    second = (await admin.client.post(url, json={"overlap_hours": 1})).json()
    expiries = [secret["expires_at"] for secret in second["secrets"]]
    assert (len(expiries), expiries[0], expiries[1] == expiries[2]) == (3, None, True)
    assert await opened_secrets(database, made) == [second["secret"], first["secret"], made["secret"]]

    longer = (await admin.client.post(url, json={"overlap_hours": 720})).json()
    assert [secret["expires_at"] for secret in longer["secrets"]][2:] == expiries[1:], "what ends soon still does"

    last = (await admin.client.post(url, json={"overlap_hours": 0})).json()
    assert len(last["secrets"]) == 1
    assert await opened_secrets(database, made) == [last["secret"]]


async def test_expired_secret_is_neither_shown_nor_kept(admin: Running, database: Any) -> None:
    made = await make_webhook(admin)
    url = f"/api/webhooks/{made['id']}"
    await admin.client.post(f"{url}/rotate-secret")
    await database.execute(
        "UPDATE webhook_secrets SET expires_at = now() - interval '1 s' WHERE endpoint = $1 AND expires_at IS NOT NULL",
        made["id"],
    )
    assert len((await admin.client.get(url)).json()["secrets"]) == 1
    await admin.client.post(f"{url}/rotate-secret")
    assert await database.fetchval("SELECT count(*) FROM webhook_secrets WHERE endpoint = $1", made["id"]) == 2


async def test_rotation_is_409_when_too_many_secrets_are_valid_but_one_can_always_be_burnt(admin: Running) -> None:
    made = await make_webhook(admin)
    url = f"/api/webhooks/{made['id']}/rotate-secret"
    statuses = [(await admin.client.post(url)).status_code for _ in range(5)]
    assert statuses == [200] * 4 + [409]
    assert (await admin.client.post(url, json={"overlap_hours": 0})).status_code == 200
    refused = await admin.client.post(url, json={"hours": 1})
    assert (refused.status_code, refused.json()["error"]["fields"][0]["field"]) == (422, "hours")
    stale = await admin.client.post(url, headers={"if-match": '"1"'})
    assert (stale.status_code, stale.json()["error"]["code"]) == (409, "version_conflict")


@pytest.mark.parametrize("url", ["http://127.0.0.1:9000/x", "https://[::1]/", "http://localhost/x", "http://10.1.1.1"])
async def test_private_address_is_422_unless_allowed(admin: Running, url: str) -> None:
    body = {"name": unique("webhook"), "url": url}
    refused = await admin.client.post("/api/webhooks", json=body)
    assert (refused.status_code, refused.json()["error"]["fields"][0]["field"]) == (422, "url")
    assert "allow_private_addresses" in refused.json()["error"]["message"]
    allowed = await admin.make("webhooks", **body, allow_private_addresses=True)
    public = await make_webhook(admin)
    for webhook_id, change in (
        (public["id"], {"url": url}),
        (allowed["id"], {"allow_private_addresses": False}),
    ):
        refused = await admin.client.patch(f"/api/webhooks/{webhook_id}", json=change)
        assert (refused.status_code, refused.json()["error"]["fields"][0]["field"]) == (422, "url")
    both = {"url": url, "allow_private_addresses": True}
    assert (await admin.client.patch(f"/api/webhooks/{public['id']}", json=both)).status_code == 200
    moved = await admin.client.patch(
        f"/api/webhooks/{allowed['id']}", json={"url": URL, "allow_private_addresses": False}
    )
    assert moved.status_code == 200


async def test_change_is_audited_without_secrets_and_told_to_no_edge(
    admin: Running, nats: Connection, database: Any
) -> None:
    made = await make_webhook(admin)
    url = f"/api/webhooks/{made['id']}"
    await admin.client.patch(url, json={"name": "another name"})
    rotated = (await admin.client.post(f"{url}/rotate-secret")).json()
    await admin.client.delete(url)
    await until(lambda: outbox_is_empty(database), "an empty outbox")
    events = await audit_messages(nats, made["id"])
    assert [event["verb"] for event in events] == ["created", "updated", "updated", "deleted"]
    assert [len(event["before"]["secrets"]) for event in events[1:]] == [1, 1, 2]
    text = json.dumps(events) + str(await database.fetch("SELECT before, after FROM audit"))
    for secret in ("very-secret-path", made["secret"], rotated["secret"]):
        assert secret not in text
    assert "https://1.1.1.1/***" in text
    assert await value(nats, subjects.CATALOGUE_BUCKET.name, f"webhook.{made['id']}") is None
    assert await database.fetchval("SELECT count(*) FROM webhook_secrets WHERE endpoint = $1", made["id"]) == 0


async def test_webhooks_go_with_their_tenant(admin: Running) -> None:
    tenant = await admin.make("tenants", name=unique("tenant"))
    made = await make_webhook(admin, tenant=tenant["id"])
    platform = await make_webhook(admin)
    assert (made["tenant"], platform["tenant"]) == (tenant["id"], None)
    listed = (await admin.client.get("/api/webhooks", params={"tenant": tenant["id"]})).json()["data"]
    assert [webhook["id"] for webhook in listed] == [made["id"]]
    url = f"/api/tenants/{tenant['id']}"
    refused = await admin.client.delete(url)
    assert (refused.status_code, "1 webhooks" in refused.text) == (409, True)
    assert (await admin.client.delete(f"{url}?cascade=true")).json()["deleted_records"] == 2
    assert (await admin.client.get(f"/api/webhooks/{made['id']}")).status_code == 404
    assert (await admin.client.get(f"/api/webhooks/{platform['id']}")).status_code == 200


async def test_circuit_is_shown_until_the_webhook_changes(admin: Running, database: Any) -> None:
    made = await make_webhook(admin)
    assert made["circuit"] is None
    await database.execute(
        "INSERT INTO endpoint_circuits (endpoint, state, failures, last_error, changed_at) "
        "VALUES ($1, 'gone', 1, 'answered 410', now())",
        made["id"],
    )
    url = f"/api/webhooks/{made['id']}"
    circuit = (await admin.client.get(url)).json()["circuit"]
    assert (circuit["state"], circuit["last_error"]) == ("gone", "answered 410")
    assert (await admin.client.patch(url, json={"name": unique("webhook")})).json()["circuit"] is None


async def test_test_is_a_command(admin: Running, nats: Connection) -> None:
    made = await make_webhook(admin, enabled=False)
    answer = await admin.client.post(f"/api/webhooks/{made['id']}/test")
    assert answer.status_code == 202
    command = await last_command(nats)
    assert command["event_id"] == answer.json()["command"]
    assert (command["verb"], command["endpoint"], command["delivery"]) == ("test", made["id"], None)
    unknown = await admin.client.post(f"/api/webhooks/{new_id('whk')}/test")
    assert (unknown.status_code, (await last_command(nats))["event_id"]) == (404, command["event_id"])


async def test_command_is_503_when_nats_is_away(start_admin: StartAdmin, own_nats: Callable[[], NatsServer]) -> None:
    server = own_nats()
    admin = await start_admin(url=server.url)
    made = await make_webhook(admin)
    server.stop()
    await until(lambda: not admin.admin.connection.is_connected, "the loss to be noticed")
    refused = await admin.client.post(f"/api/webhooks/{made['id']}/test")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "events_unavailable")
    assert await asyncio.wait_for(make_webhook(admin), 5), "saved all the same"
