"""From the tables to the buckets: told once, in the present state, whatever is away or dies in between."""

import asyncio
import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import pytest
from nats.js.errors import KeyNotFoundError

from sluicegate.admin.projection import repository
from sluicegate.admin.projection.buckets import Buckets, Last, StaleWriteError
from sluicegate.admin.projection.entries import Entry
from sluicegate.bus.connection import Connection, connect
from sluicegate.contracts import subjects
from sluicegate.contracts.catalogue import META_COMPLETE
from sluicegate.contracts.keys import key_digest
from sluicegate.devstack.servers import NatsServer
from sluicegate.devstack.waiting import until

from .conftest import Running, StartAdmin, StartEdge, unique

Database = asyncpg.Connection


async def value(nats: Connection, bucket: str, name: str) -> dict[str, Any] | None:
    """Return what stands in a bucket."""
    try:
        entry = await (await nats.jetstream().key_value(bucket)).get(name)
    except KeyNotFoundError:
        return None
    record: dict[str, Any] = json.loads(entry.value or b"null")
    return record


async def key_value(nats: Connection, key: dict[str, Any]) -> dict[str, Any] | None:
    return await value(nats, subjects.KEYS_BUCKET.name, key_digest(key["key"].encode()))


async def catalogue(nats: Connection, noun: str, record: dict[str, Any]) -> dict[str, Any] | None:
    return await value(nats, subjects.CATALOGUE_BUCKET.name, f"{noun}.{record['id']}")


async def outbox_is_empty(database: Any) -> bool:
    return bool(await database.fetchval("SELECT count(*) = 0 FROM outbox"))


async def audit_messages(nats: Connection, record_id: str) -> list[dict[str, Any]]:
    """Return the events of the AUDIT stream about a record, in order."""
    js = nats.jetstream()
    subscription = await js.subscribe(f"{subjects.AUDIT}.>", ordered_consumer=True)
    events = []
    try:
        while True:
            message = await subscription.next_msg(timeout=5)
            events += json.loads(message.data)
            if message.metadata.num_pending == 0:
                return [event for event in events if event["id"] == record_id]
    finally:
        await subscription.unsubscribe()


async def test_change_is_told_audited_and_forgotten_once(admin: Running, nats: Connection, database: Any) -> None:
    team = await admin.make_team()
    await admin.client.patch(f"/api/teams/{team['id']}", json={"name": "Zürich"})
    await admin.client.delete(f"/api/teams/{team['id']}")
    assert await catalogue(nats, "team", team) is None
    await until(lambda: outbox_is_empty(database), "an empty outbox")
    events = await audit_messages(nats, team["id"])
    assert [event["verb"] for event in events] == ["created", "updated", "deleted"]
    assert [(event["before"] or {}).get("name") for event in events] == [None, "Search", "Zürich"]
    assert [(event["after"] or {}).get("name") for event in events] == ["Search", "Zürich", None]
    assert {event["actor"] for event in events} == {"bootstrap"}
    rows = await database.fetch("SELECT event_id FROM audit WHERE record_id = $1 ORDER BY event_id", team["id"])
    assert [row["event_id"] for row in rows] == [event["event_id"] for event in events]


async def test_audit_holds_no_secret(admin: Running, nats: Connection, database: Any) -> None:
    secret = "sk-live-0123456789abcdefWXYZ"
    provider = await admin.make("providers", name=unique("p"), base_url="https://x", api_key=secret)
    key = await admin.make("keys", team=(await admin.make_team())["id"], name="k")
    await admin.client.patch(f"/api/providers/{provider['id']}", json={"api_key": secret + "1234"})
    await until(lambda: outbox_is_empty(database), "an empty outbox")
    told = json.dumps([await audit_messages(nats, provider["id"]), await audit_messages(nats, key["id"])])
    written = json.dumps([list(map(str, row.values())) for row in await database.fetch("SELECT * FROM audit")])
    for text in (told, written):
        assert "WXYZ" in text
        assert secret not in text
        assert key["key"] not in text
        assert key_digest(key["key"].encode()) not in text


async def test_credential_in_the_bucket_opens_only_for_its_provider(admin: Running, nats: Connection) -> None:
    import msgspec

    from sluicegate.contracts.catalogue import Provider
    from sluicegate.runtime.key_ring import KeyRing, SealError

    from .conftest import KEY_RING

    secret = "sk-live-0123456789abcdefWXYZ"
    made = await admin.make("providers", name=unique("p"), base_url="https://x", api_key=secret)
    record = await catalogue(nats, "provider", made)
    assert secret not in json.dumps(record)
    provider = msgspec.convert(record, Provider)
    assert provider.credential is not None
    ring = KeyRing.parse(KEY_RING)
    assert ring.open(provider.credential, made["id"].encode()).decode() == secret
    with pytest.raises(SealError):
        ring.open(provider.credential, b"prv_another")


async def test_deleted_key_is_refused_by_its_tombstone(admin: Running, nats: Connection, start_edge: StartEdge) -> None:
    """A delete is told like any other change: the key's record stays, revoked."""
    edge = await start_edge()
    await until(lambda: admin.admin.edges.live_count == 1, "a live edge")
    key = await admin.make("keys", team=(await admin.make_team())["id"], name="k")
    deleted = (await admin.client.delete(f"/api/keys/{key['id']}")).json()
    assert deleted["propagated"] is True
    record = await key_value(nats, key)
    assert record is not None
    assert record["revoked_at_us"] is not None
    assert b'"revoked_at_us":null' not in edge.entries["keys"][key_digest(key["key"].encode())]


@pytest.mark.parametrize("parent", ["team", "department", "tenant"])
async def test_deleting_a_parent_revokes_every_key_under_it(
    admin: Running, nats: Connection, database: Any, start_edge: StartEdge, parent: str
) -> None:
    """One event per key, and nothing outside the parent is touched."""
    await start_edge()
    await until(lambda: admin.admin.edges.live_count == 1, "a live edge")
    tenant = await admin.make("tenants", name=unique("tenant"))
    department = await admin.make("departments", tenant=tenant["id"], name="d")
    team = await admin.make("teams", tenant=tenant["id"], department=department["id"], name="t")
    keys = [await admin.make("keys", team=team["id"], name=f"k{place}") for place in range(3)]
    bystander = await admin.make("keys", team=(await admin.make_team())["id"], name="other")
    url = f"/api/{parent}s/" + {"team": team, "department": department, "tenant": tenant}[parent]["id"]

    refused = await admin.client.delete(url)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "in_use")
    assert [(await key_value(nats, key) or {})["revoked_at_us"] for key in keys] == [None] * 3

    done = (await admin.client.delete(url, params={"cascade": "true"})).json()
    assert done["propagated"] is True
    assert done["deleted_records"] == {"team": 4, "department": 5, "tenant": 6}[parent]
    assert None not in [(await key_value(nats, key) or {})["revoked_at_us"] for key in keys]
    assert (await key_value(nats, bystander) or {})["revoked_at_us"] is None
    assert await catalogue(nats, "team", team) is None
    await until(lambda: outbox_is_empty(database), "an empty outbox")
    for key in keys:
        assert [event["verb"] for event in await audit_messages(nats, key["id"])] == ["created", "deleted"]


async def test_deleting_a_tenant_takes_its_routes_models_and_providers(admin: Running, nats: Connection) -> None:
    tenant = await admin.make("tenants", name=unique("tenant"))
    model = await admin.make_model(tenant=tenant["id"])
    route = await admin.make("routes", alias="private", tenant=tenant["id"], targets=[{"model": model["id"]}])
    assert (await admin.client.delete(f"/api/tenants/{tenant['id']}")).status_code == 409
    done = await admin.client.delete(f"/api/tenants/{tenant['id']}", params={"cascade": "true"})
    assert done.json()["deleted_records"] == 4
    for noun, record in (("tenant", tenant), ("model", model), ("route", route)):
        assert await catalogue(nats, noun, record) is None


async def test_model_is_409_while_a_route_leads_to_it(admin: Running) -> None:
    model = await admin.make_model()
    route = await admin.make("routes", alias=unique("a"), targets=[{"model": model["id"]}])
    for url in (f"/api/models/{model['id']}", f"/api/providers/{model['provider']}?cascade=true"):
        refused = await admin.client.delete(url)
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "in_use")
        assert route["alias"] in refused.json()["error"]["message"]
    await admin.client.delete(f"/api/routes/{route['id']}")
    done = await admin.client.delete(f"/api/providers/{model['provider']}?cascade=true")
    assert done.json()["deleted_records"] == 2


async def test_key_cannot_slip_into_a_team_that_is_being_deleted(admin: Running, nats: Connection) -> None:
    for _ in range(5):
        team = await admin.make_team()
        bodies = [{"team": team["id"], "name": f"k{place}"} for place in range(4)]
        url = f"/api/teams/{team['id']}?cascade=true"
        deleted, *made = await asyncio.gather(
            admin.client.delete(url), *(admin.client.post("/api/keys", json=body) for body in bodies)
        )
        assert deleted.status_code == 200
        for answer in made:
            if answer.status_code == 201:
                assert (await key_value(nats, answer.json()) or {})["revoked_at_us"] is not None
            else:
                assert answer.status_code == 422


async def test_keys_follow_their_team_into_another_department(admin: Running, nats: Connection) -> None:
    team = await admin.make_team()
    key = await admin.make("keys", team=team["id"], name="k")
    department = await admin.make("departments", tenant=team["tenant"], name="d")
    assert (await key_value(nats, key) or {})["department"] is None
    url = f"/api/teams/{team['id']}"
    await admin.client.patch(url, json={"department": department["id"]})
    assert (await key_value(nats, key) or {})["department"] == department["id"]
    await admin.client.patch(url, json={"department": None})
    assert (await key_value(nats, key) or {})["department"] is None


async def test_change_is_told_later_when_the_process_died_before_telling(
    admin: Running, start_admin: StartAdmin, nats: Connection, database: Any
) -> None:
    """What a commit left in the outbox is told by whoever comes next, once."""
    team = await admin.make_team()
    await until(lambda: outbox_is_empty(database), "an empty outbox")
    event_id = await database.fetchval("SELECT event_id FROM audit WHERE record_id = $1", team["id"])
    async with database.transaction():
        await database.execute("UPDATE teams SET name = 'after the crash' WHERE id = $1", team["id"])
        await database.execute(
            "INSERT INTO audit SELECT $2, at, actor, address, noun, record_id, 'updated', before, after "
            "FROM audit WHERE event_id = $1",
            event_id,
            event_id + "x",
        )
        await database.execute(
            "INSERT INTO outbox (noun, record_id, event_id) VALUES ('team', $1, $2)", team["id"], event_id + "x"
        )
    await start_admin(wait=False)
    await until(lambda: outbox_is_empty(database), "an empty outbox")
    assert (await catalogue(nats, "team", team) or {})["name"] == "after the crash"
    assert [event["verb"] for event in await audit_messages(nats, team["id"])] == ["created", "updated"]


async def test_row_told_twice_does_no_harm(
    admin: Running, nats: Connection, database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash after telling and before the outbox row is gone: the audit event is not doubled, nor the entry."""
    remove = repository.remove_from_outbox
    failures = iter([True, True])

    async def crash(connection: Any, sequences: Any) -> None:
        if next(failures, False):
            raise RuntimeError("crash before the row is removed")
        await remove(connection, sequences)

    monkeypatch.setattr(repository, "remove_from_outbox", crash)
    tenant = await admin.make("tenants", name=unique("tenant"))
    entry = Entry("catalogue", f"tenant.{tenant['id']}")
    first = await Buckets(nats).last(entry)
    await until(lambda: outbox_is_empty(database), "an empty outbox")
    assert next(failures, None) is None
    assert await Buckets(nats).last(entry) == first
    assert len(await audit_messages(nats, tenant["id"])) == 1


async def test_late_relay_cannot_bring_a_revoked_key_back(
    admin: Running, start_admin: StartAdmin, nats: Connection, database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relay is held up between the look at the state and the write, loses its lock, and another one revokes."""
    other = await start_admin()
    key = await admin.make("keys", team=(await admin.make_team())["id"], name="k")
    await until(lambda: outbox_is_empty(database), "an empty outbox")
    relay: Any = admin.admin.relay
    held, go_on = asyncio.Event(), asyncio.Event()
    write = relay._write

    async def held_up(entry: Entry, new: bytes | None, last: Last) -> Any:
        held.set()
        await go_on.wait()
        return await write(entry, new, last)

    monkeypatch.setattr(relay, "_write", held_up)
    # The held relay has seen the key alive under a new name.
    changing = asyncio.create_task(admin.client.patch(f"/api/keys/{key['id']}", json={"name": "late"}))
    await held.wait()
    # Its database session breaks, and with it the lock goes.
    await database.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted AND database = "
        "(SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    revoked = await other.client.post(f"/api/keys/{key['id']}/revoke")
    assert revoked.status_code == 200
    assert (await key_value(nats, key) or {})["revoked_at_us"] is not None
    go_on.set()
    await changing
    await until(lambda: outbox_is_empty(database), "an empty outbox")
    record = await key_value(nats, key) or {}
    assert record["revoked_at_us"] is not None
    assert record["name"] == "late"


async def test_changes_through_two_admins_end_in_the_present_state(
    admin: Running, start_admin: StartAdmin, nats: Connection, database: Any, start_edge: StartEdge
) -> None:
    other = await start_admin()
    await start_edge()
    await until(lambda: admin.admin.edges.live_count == other.admin.edges.live_count == 1, "a live edge")
    team = await admin.make_team()
    url = f"/api/teams/{team['id']}"
    admins = (admin, other) * 10
    answers, made = await asyncio.gather(
        asyncio.gather(*(one.client.patch(url, json={"name": f"name {turn}"}) for turn, one in enumerate(admins))),
        asyncio.gather(*(one.make("keys", team=team["id"], name=f"k{turn}") for turn, one in enumerate(admins))),
    )
    patched = [answer.json() for answer in answers]
    assert [answer["propagated"] for answer in patched] == [True] * 20
    assert [answer["propagated"] for answer in made] == [True] * 20
    assert sorted(answer["version"] for answer in patched) == list(range(2, 22))
    last = max(patched, key=lambda answer: answer["version"])
    assert (await catalogue(nats, "team", team) or {})["name"] == last["name"]
    await until(lambda: outbox_is_empty(database), "an empty outbox")
    assert len(await audit_messages(nats, team["id"])) == 21


async def test_only_one_relays_at_a_time(admin: Running, nats: Connection, database: Any) -> None:
    """While another process is the relay, a change is saved and waits; then it is told."""
    await database.execute("SELECT pg_advisory_lock($1)", repository._RELAY_LOCK)
    tenant = await admin.make("tenants", name=unique("tenant"))
    assert tenant["propagated"] is False
    assert await catalogue(nats, "tenant", tenant) is None
    await database.execute("SELECT pg_advisory_unlock($1)", repository._RELAY_LOCK)
    await until(lambda: catalogue(nats, "tenant", tenant), "the tenant in the bucket")


async def test_only_one_compares_at_a_time(admin: Running, database: Any) -> None:
    finished = admin.admin.comparison.finished_count
    await database.execute("SELECT pg_advisory_lock($1)", repository._COMPARE_LOCK)
    await admin.admin.comparison.compare()
    assert admin.admin.comparison.finished_count == finished
    await database.execute("SELECT pg_advisory_unlock($1)", repository._COMPARE_LOCK)
    await admin.admin.comparison.compare()
    assert admin.admin.comparison.finished_count > finished


async def test_bucket_is_not_called_complete_when_it_was_made_again_meanwhile(
    admin: Running, nats: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edge would take an empty bucket for the truth."""
    comparison: Any = admin.admin.comparison
    created = await comparison._buckets.created("keys")
    answers: Iterator[datetime] = iter([created, created + timedelta(seconds=1)])

    async def made_again(_bucket: str) -> datetime:
        return next(answers)

    with monkeypatch.context() as patched:
        patched.setattr(comparison._buckets, "created", made_again)
        with pytest.raises(StaleWriteError):
            await comparison._complete("keys", created, 0)
    assert await value(nats, subjects.KEYS_BUCKET.name, META_COMPLETE) is None
    await until(lambda: value(nats, subjects.KEYS_BUCKET.name, META_COMPLETE), "a comparison that finds it missing")


async def test_change_overtakes_a_mass_deletion(
    admin: Running, nats: Connection, database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A revocation does not wait until thousands of other records are told."""
    team = await admin.make_team()
    key = await admin.make("keys", team=team["id"], name="k")
    await until(lambda: outbox_is_empty(database), "an empty outbox")
    await database.execute("SELECT pg_advisory_lock($1)", repository._RELAY_LOCK)
    await database.execute(
        "INSERT INTO outbox (noun, record_id) SELECT 'team', 'tea_ghost' || n FROM generate_series(1, 3000) n"
    )
    revoking = asyncio.create_task(admin.client.post(f"/api/keys/{key['id']}/revoke"))
    await until(lambda: database.fetchval("SELECT true FROM outbox WHERE record_id = $1", key["id"]), "the outbox row")
    left: list[int] = []
    answer = admin.admin.relay._settle

    async def counted(connection: Any, entries: Any) -> Any:
        settled = await answer(connection, entries)
        if any(entry.bucket == "keys" for entry in entries):
            left.append(await connection.fetchval("SELECT count(*) FROM outbox WHERE NOT is_projected"))
        return settled

    monkeypatch.setattr(admin.admin.relay, "_settle", counted)
    await database.execute("SELECT pg_advisory_unlock($1)", repository._RELAY_LOCK)
    await revoking
    await until(lambda: outbox_is_empty(database), "an empty outbox")
    assert left == [3001]


async def test_changes_are_told_later_when_nats_is_away(
    start_admin: StartAdmin, own_nats: Callable[[], NatsServer], postgres_dsn: str, database: Any
) -> None:
    server = own_nats()
    admin = await start_admin(url=server.url)
    team = await admin.make_team()
    server.stop()
    await until(lambda: not admin.admin.connection.is_connected, "the loss to be noticed")
    key = await admin.make("keys", team=team["id"], name="made while NATS was away")
    assert (key["propagated"], key["edges"]["live"]) == (False, 0)
    assert (await admin.client.get(f"/api/keys/{key['id']}")).status_code == 200
    assert not await outbox_is_empty(database)
    server.start()
    await until(lambda: outbox_is_empty(database), "an empty outbox", deadline_s=40)
    nats = await connect(server.url, name="test")
    assert (await key_value(nats, key) or {})["name"] == "made while NATS was away"
    assert len(await audit_messages(nats, key["id"])) == 1
    await nats.close()


async def test_service_starts_and_changes_when_nats_was_never_there(start_admin: StartAdmin) -> None:
    admin = await start_admin(url="nats://127.0.0.1:9", wait=False)
    tenant = await admin.make("tenants", name=unique("tenant"))
    assert tenant["propagated"] is False
    await until(lambda: admin.admin.health.is_ready, "readiness")
    assert "away" in admin.admin.health.report()["parts"]["nats"]["detail"]


async def test_wiped_store_heals_by_itself(start_admin: StartAdmin, own_nats: Callable[[], NatsServer]) -> None:
    server = own_nats()
    admin = await start_admin(url=server.url)
    team = await admin.make_team()
    keys = [await admin.make("keys", team=team["id"], name=f"k{place}") for place in range(20)]
    await admin.client.post(f"/api/keys/{keys[0]['id']}/revoke")
    finished = admin.admin.comparison.finished_count
    server.stop()
    server.wipe()
    server.start()
    await until(lambda: admin.admin.comparison.finished_count > finished, "a comparison", deadline_s=60)
    nats = await connect(server.url, name="test")
    revoked = [(await key_value(nats, key) or {})["revoked_at_us"] is not None for key in keys]
    assert revoked == [True] + [False] * 19
    assert (await catalogue(nats, "team", team) or {})["name"] == "Search"
    for bucket in subjects.BUCKETS:
        assert await value(nats, bucket.name, META_COMPLETE) is not None
    await nats.close()


async def test_bucket_is_repaired_where_it_is_wrong(admin: Running, nats: Connection) -> None:
    """Missing, different, and too much; `meta.complete` lies behind all repairs in the stream."""
    js = nats.jetstream()
    keys_bucket = await js.key_value(subjects.KEYS_BUCKET.name)
    catalogue_bucket = await js.key_value(subjects.CATALOGUE_BUCKET.name)
    team = await admin.make_team()
    missing, different = [await admin.make("keys", team=team["id"], name=name) for name in ("missing", "different")]
    await keys_bucket.delete(key_digest(missing["key"].encode()))
    await keys_bucket.put(key_digest(different["key"].encode()), b"{}")
    await keys_bucket.put("0" * 64, b'{"id":"key_ghost"}')
    await catalogue_bucket.put("team.tea_ghost", b"{}")
    await catalogue_bucket.put("strange.thing", b"{}")
    await admin.admin.comparison.compare()
    assert (await key_value(nats, missing) or {})["name"] == "missing"
    assert (await key_value(nats, different) or {})["name"] == "different"
    assert await value(nats, keys_bucket._name, "0" * 64) is None
    assert await value(nats, catalogue_bucket._name, "team.tea_ghost") is None
    assert await value(nats, catalogue_bucket._name, "strange.thing") is None
    for bucket in (keys_bucket, catalogue_bucket):
        info = await js.stream_info(bucket._stream)
        assert (await bucket.get(META_COMPLETE)).revision == info.state.last_seq


async def test_comparison_writes_nothing_when_all_is_right(admin: Running, nats: Connection) -> None:
    await admin.make("keys", team=(await admin.make_team())["id"], name="k")
    await admin.make_model(api_key="sk-0123456789abcdef")
    await admin.admin.comparison.compare()
    before = [(await nats.jetstream().stream_info(f"KV_{bucket.name}")).state.last_seq for bucket in subjects.BUCKETS]
    await admin.admin.comparison.compare()
    after = [(await nats.jetstream().stream_info(f"KV_{bucket.name}")).state.last_seq for bucket in subjects.BUCKETS]
    assert after == before


async def test_tombstones_leave_the_bucket_after_thirty_days(admin: Running, nats: Connection, database: Any) -> None:
    team = await admin.make_team()
    names = ("revoked", "revoked lately", "expired", "expired lately", "alive")
    keys = {name: await admin.make("keys", team=team["id"], name=name) for name in names}
    for name, column, days in (
        ("revoked", "revoked_at", 31),
        ("revoked lately", "revoked_at", 29),
        ("expired", "expires_at", 31),
        ("expired lately", "expires_at", 29),
    ):
        await database.execute(
            f"UPDATE keys SET {column} = now() - make_interval(days => $2) WHERE id = $1", keys[name]["id"], days
        )
    await admin.admin.comparison.compare()
    assert {name for name in names if await key_value(nats, keys[name]) is None} == {"revoked", "expired"}


async def test_deleting_a_team_with_thousands_of_keys_is_told_key_by_key(
    admin: Running, nats: Connection, database: Any
) -> None:
    team = await admin.make_team()
    await database.execute(
        "INSERT INTO keys (id, team, name, digest, prefix, enabled) "
        "SELECT 'key_' || lpad(n::text, 26, '0'), $1, 'k', encode(sha256(n::text::bytea), 'hex'), 'sgk_x', true "
        "FROM generate_series(1, 3000) n",
        team["id"],
    )
    await admin.admin.comparison.compare()
    done = (await admin.client.delete(f"/api/teams/{team['id']}?cascade=true")).json()
    assert done["deleted_records"] == 3001
    await until(lambda: outbox_is_empty(database), "an empty outbox", deadline_s=60)
    contents = await Buckets(nats).contents("keys")
    revoked = [record for record in contents.values.values() if f'"team":"{team["id"]}"'.encode() in record]
    assert len(revoked) == 3000
    assert not [record for record in revoked if b'"revoked_at_us":null' in record]
