"""Limits: set on every kind of scope, one by one, and told to the edges as they are."""

from typing import Any

import pytest

from sluicegate.bus.connection import Connection

from .conftest import Running, unique
from .test_nouns import body_for
from .test_projection import catalogue, key_value

LIMITED = ("tenants", "departments", "teams", "keys", "providers", "models")
NONE = {"requests_per_minute": None, "tokens_per_minute": None, "open_requests": None}


async def told(nats: Connection, noun: str, record: dict[str, Any]) -> dict[str, Any]:
    """Return the limits that the edges see."""
    entry = await (key_value(nats, record) if noun == "keys" else catalogue(nats, noun.removesuffix("s"), record))
    assert entry is not None
    limits: dict[str, Any] = entry.get("limits", {})
    return limits


@pytest.mark.parametrize("noun", LIMITED)
async def test_limits_are_set_and_removed_one_by_one(admin: Running, nats: Connection, noun: str) -> None:
    body = await body_for(admin, noun)
    made = await admin.make(noun, **body, limits={"requests_per_minute": 60, "open_requests": 0})
    assert made["limits"] == NONE | {"requests_per_minute": 60, "open_requests": 0}
    assert await told(nats, noun, made) == {"requests_per_minute": 60, "open_requests": 0}

    url = f"/api/{noun}/{made['id']}"
    for patch, expected in (
        ({"limits": {"tokens_per_minute": 10**12}}, {"requests_per_minute": 60, "tokens_per_minute": 10**12}),
        ({"limits": {"requests_per_minute": None}}, {"tokens_per_minute": 10**12}),
        ({"name": "another"}, {"tokens_per_minute": 10**12}),
        ({"limits": {}}, {"tokens_per_minute": 10**12}),
    ):
        changed = (await admin.client.patch(url, json=patch)).json()
        assert changed["limits"] == NONE | expected | {"open_requests": 0}, patch
        assert await told(nats, noun, made | changed) == expected | {"open_requests": 0}, patch
    assert changed["version"] == 4
    assert (await admin.client.get(url)).json()["limits"] == changed["limits"]


async def test_record_has_no_limits_when_none_are_stated(admin: Running, nats: Connection) -> None:
    for noun in LIMITED:
        made = await admin.make(noun, **await body_for(admin, noun))
        assert made["limits"] == NONE, noun
        assert await told(nats, noun, made) == {}, noun


@pytest.mark.parametrize("noun", LIMITED)
async def test_limits_are_422_and_change_nothing_when_they_make_no_sense(admin: Running, noun: str) -> None:
    body = await body_for(admin, noun)
    made = await admin.make(noun, **body, limits={"requests_per_minute": 7})
    url = f"/api/{noun}/{made['id']}"
    for limits, field in (
        ({"requests_per_minute": -1}, "limits.requests_per_minute"),
        ({"max_budget": 1}, "limits.max_budget"),
        (None, "limits"),
    ):
        for answer in (
            await admin.client.post(f"/api/{noun}", json=body | {"name": "x", "limits": limits}),
            await admin.client.patch(url, json={"limits": limits}),
        ):
            assert (answer.status_code, answer.json()["error"]["fields"][0]["field"]) == (422, field)
    left = (await admin.client.get(url)).json()
    assert (left["limits"], left["version"]) == (NONE | {"requests_per_minute": 7}, 1)


async def test_route_has_no_limits(admin: Running) -> None:
    body = await body_for(admin, "routes")
    answer = await admin.client.post("/api/routes", json=body | {"limits": {"requests_per_minute": 1}})
    assert (answer.status_code, answer.json()["error"]["fields"][0]["field"]) == (422, "limits")


async def test_end_user_limits_are_told_with_their_tenant(admin: Running, nats: Connection) -> None:
    tenant = await admin.make("tenants", name=unique("tenant"), end_user_limits={"requests_per_minute": 5})
    assert tenant["end_user_limits"] == NONE | {"requests_per_minute": 5}
    url = f"/api/tenants/{tenant['id']}"
    await admin.client.patch(url, json={"end_user_limits": {"tokens_per_minute": 0}})
    entry = await catalogue(nats, "tenant", tenant)
    assert entry is not None
    assert entry["end_user_limits"] == {"requests_per_minute": 5, "tokens_per_minute": 0}
    assert (entry["limits"], "default_key_limits" in entry) == ({}, False)


async def test_new_key_takes_what_is_not_stated_from_its_tenant(admin: Running, nats: Connection) -> None:
    tenant = await admin.make(
        "tenants", name=unique("tenant"), default_key_limits={"requests_per_minute": 10, "open_requests": 2}
    )
    team = await admin.make("teams", tenant=tenant["id"], name="Search")
    defaults = NONE | {"requests_per_minute": 10, "open_requests": 2}
    for stated, expected in (
        ({}, defaults),
        ({"limits": {}}, defaults),
        ({"limits": {"requests_per_minute": 99}}, defaults | {"requests_per_minute": 99}),
        ({"limits": {"requests_per_minute": None, "open_requests": 0}}, NONE | {"open_requests": 0}),
    ):
        key = await admin.make("keys", team=team["id"], name="k", **stated)
        assert key["limits"] == expected, stated
        assert NONE | await told(nats, "keys", key) == expected, stated


async def test_key_keeps_its_limits_when_the_defaults_change_later(admin: Running) -> None:
    team = await admin.make_team()
    before = await admin.make("keys", team=team["id"], name="before")
    url = f"/api/tenants/{team['tenant']}"
    changed = (await admin.client.patch(url, json={"default_key_limits": {"open_requests": 3}})).json()
    assert changed["default_key_limits"] == NONE | {"open_requests": 3}
    after = await admin.make("keys", team=team["id"], name="after")
    limits = [(await admin.client.get(f"/api/keys/{key['id']}")).json()["limits"] for key in (before, after)]
    assert limits == [NONE, NONE | {"open_requests": 3}]


async def test_change_of_limits_is_audited(admin: Running, database: Any) -> None:
    team = await admin.make_team()
    await admin.client.patch(f"/api/teams/{team['id']}", json={"limits": {"open_requests": 4}})
    query = (
        "SELECT before->'limits'->>'open_requests', after->'limits'->>'open_requests' FROM audit WHERE record_id = $1"
    )
    rows = await database.fetch(query + " AND verb = 'updated'", team["id"])
    assert [tuple(row) for row in rows] == [(None, "4")]
