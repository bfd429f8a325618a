"""Keys: shown once, stored as a digest, revoked for good."""

import asyncio
import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg

from sluicegate.contracts.keys import has_key_form, key_digest
from sluicegate.devstack.waiting import until

from .conftest import Running, StartEdge


async def test_key_is_shown_once_and_stored_as_its_digest(
    admin: Running, database: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    team = await admin.make_team()
    made = await admin.make("keys", team=team["id"], name="production")
    text = made["key"]
    assert has_key_form(text.encode())
    assert text.startswith(made["prefix"])
    assert (made["tenant"], made["team"], made["status"]) == (team["tenant"], team["id"], "active")

    for answer in (
        await admin.client.get(f"/api/keys/{made['id']}"),
        await admin.client.get("/api/keys"),
        await admin.client.patch(f"/api/keys/{made['id']}", json={"name": "x"}),
        await admin.client.post(f"/api/keys/{made['id']}/revoke"),
    ):
        assert answer.status_code == 200
        assert text not in answer.text
        assert key_digest(text.encode()) not in answer.text
    digest = await database.fetchval("SELECT digest FROM keys WHERE id = $1", made["id"])
    assert digest == hashlib.sha256(text.encode()).hexdigest()
    tables = [row[0] for row in await database.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")]
    for table in tables:
        found = await database.fetchval(f"SELECT count(*) FROM {table} t WHERE t::text LIKE '%' || $1 || '%'", text)
        assert found == 0, table


async def test_revoked_key_stays_as_it_is(admin: Running) -> None:
    key = await admin.make("keys", team=(await admin.make_team())["id"], name="k")
    url = f"/api/keys/{key['id']}"
    revoked = (await admin.client.post(f"{url}/revoke")).json()
    assert (revoked["status"], revoked["version"]) == ("revoked", 2)
    again = (await admin.client.post(f"{url}/revoke")).json()
    assert (again["revoked_at"], again["version"]) == (revoked["revoked_at"], 2)
    refused = await admin.client.patch(url, json={"enabled": False})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "key_revoked")


async def test_status_tells_what_a_key_is_worth(admin: Running) -> None:
    key = await admin.make("keys", team=(await admin.make_team())["id"], name="k")
    url = f"/api/keys/{key['id']}"
    past = (datetime.now(UTC) - timedelta(days=1)).isoformat()
    for change, status in (
        ({"enabled": False}, "disabled"),
        ({"expires_at": past}, "expired"),
        ({"enabled": True, "expires_at": None}, "active"),
    ):
        assert (await admin.client.patch(url, json=change)).json()["status"] == status


async def test_key_change_reaches_the_edges_with_its_answer(admin: Running, start_edge: StartEdge) -> None:
    edges = [await start_edge(), await start_edge()]
    await until(lambda: admin.admin.edges.live_count == 2, "two live edges")
    team = await admin.make_team()
    key = await admin.make("keys", team=team["id"], name="k", allowed_models=["gpt*"])
    assert (key["propagated"], key["edges"]) == (True, {"applied": 2, "live": 2})
    digest = key_digest(key["key"].encode())
    assert [b'"allowed_models":["gpt*"]' in edge.entries["keys"][digest] for edge in edges] == [True, True]
    revoked = (await admin.client.post(f"/api/keys/{key['id']}/revoke")).json()
    assert revoked["propagated"] is True
    assert [b'"revoked_at_us":null' in edge.entries["keys"][digest] for edge in edges] == [False, False]


async def test_answer_says_not_propagated_when_an_edge_does_not_apply(admin: Running, start_edge: StartEdge) -> None:
    await start_edge()
    slow = await start_edge()
    await until(lambda: admin.admin.edges.live_count == 2, "two live edges")
    team = await admin.make_team()
    slow.hold()
    key = await admin.make("keys", team=team["id"], name="k")
    assert (key["propagated"], key["edges"]) == (False, {"applied": 1, "live": 2})


async def test_answer_says_not_propagated_when_there_is_no_edge(admin: Running) -> None:
    key = await admin.make("keys", team=(await admin.make_team())["id"], name="k")
    assert (key["propagated"], key["edges"]) == (False, {"applied": 0, "live": 0})


async def test_two_concurrent_changes_of_a_key_are_both_kept(admin: Running) -> None:
    key = await admin.make("keys", team=(await admin.make_team())["id"], name="k")
    url = f"/api/keys/{key['id']}"
    changes: list[dict[str, Any]] = [
        {"name": "new"},
        {"enabled": False},
        {"allowed_models": ["a"]},
        {"expires_at": "2099-01-01T00:00:00Z"},
    ]
    answers = await asyncio.gather(*(admin.client.patch(url, json=change) for change in changes))
    assert [answer.status_code for answer in answers] == [200] * 4
    kept = (await admin.client.get(url)).json()
    assert kept["version"] == 5
    assert kept.items() >= {name: value for change in changes for name, value in change.items()}.items()
