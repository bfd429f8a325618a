"""Who may call what: keys and what stands above them, and a models list that says exactly that."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from sluicegate.contracts.catalogue import Department, Route, Target, Team, Tenant
from sluicegate.contracts.keys import new_key
from sluicegate.devstack.edge_process import EdgeUnderTest, until
from sluicegate.devstack.fake_provider.server import FakeProvider
from sluicegate.devstack.raw_http import RawClient, Response, chat, get

HOUR_US = 3_600_000_000


def now_us() -> int:
    return time.time_ns() // 1_000


async def ask(edge: EdgeUnderTest, key: str | None = None, **more: Any) -> Response:
    async with edge.client() as client:
        return await client.ask(chat(key=key or edge.key, **more))


async def models(edge: EdgeUnderTest, key: str | None = None, path: str = "/v1/models") -> Response:
    async with edge.client() as client:
        return await client.ask(get(path, key=key or edge.key))


@pytest.mark.parametrize(
    "text",
    [
        "' OR 1=1 --",
        "sgk_'; DROP TABLE keys; --",
        "sgk_" + "a" * 49,
        "sk-proj-" + "x" * 40,
        "x" * 4_000,
        "sgk_\xff\xfe",
        "*",
        "../../etc/passwd",
        "{}",
    ],
)
async def test_crafted_key_is_unknown_and_nobody_is_asked(
    edge: EdgeUnderTest, provider: FakeProvider, text: str
) -> None:
    response = await ask(edge, text)
    assert (response.status, response.code) == (401, "invalid_key")
    assert text not in response.body.decode()
    assert provider.calls.total == 0
    assert provider.calls.connections_total == 0
    assert edge.records == []
    assert edge.journal.admissions == []


def revoked(edge: EdgeUnderTest) -> None:
    edge.put_key(edge.key, revoked_at_us=now_us() - HOUR_US)


def expired(edge: EdgeUnderTest) -> None:
    edge.put_key(edge.key, expires_at_us=now_us() - 1)


def disabled(edge: EdgeUnderTest) -> None:
    edge.put_key(edge.key, enabled=False)


def disabled_tenant(edge: EdgeUnderTest) -> None:
    edge.put(Tenant(id="ten_1", name="t", enabled=False))


def disabled_team(edge: EdgeUnderTest) -> None:
    edge.put(Team(id="tea_1", name="t", tenant="ten_1", enabled=False))


def disabled_department(edge: EdgeUnderTest) -> None:
    edge.put(Department(id="dep_1", name="d", tenant="ten_1", enabled=False))
    edge.put_key(edge.key, department="dep_1")


def missing_tenant(edge: EdgeUnderTest) -> None:
    edge.remove("tenant.ten_1")


def missing_team(edge: EdgeUnderTest) -> None:
    edge.remove("team.tea_1")


def missing_department(edge: EdgeUnderTest) -> None:
    edge.put_key(edge.key, department="dep_1")


def unreadable(edge: EdgeUnderTest) -> None:
    edge.view.replace("keys", dict.fromkeys(edge.view._keys, b'{"id":'))


def deleted(edge: EdgeUnderTest) -> None:
    edge.view.replace("keys", {})


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        (revoked, 401, "key_revoked"),
        (expired, 401, "key_expired"),
        (deleted, 401, "invalid_key"),
        (disabled, 403, "key_disabled"),
        (disabled_tenant, 403, "key_disabled"),
        (disabled_team, 403, "key_disabled"),
        (disabled_department, 403, "key_disabled"),
        (missing_tenant, 503, "dependency_unavailable"),
        (missing_team, 503, "dependency_unavailable"),
        (missing_department, 503, "dependency_unavailable"),
        (unreadable, 503, "dependency_unavailable"),
    ],
)
async def test_key_is_refused_from_the_change_on(
    edge: EdgeUnderTest, provider: FakeProvider, change: Callable[[EdgeUnderTest], None], status: int, code: str
) -> None:
    """Also on a connection that has used it before."""
    async with edge.client() as client:
        assert (await client.ask(chat(key=edge.key))).status == 200
        assert (await client.ask(get("/v1/models", key=edge.key))).status == 200
        change(edge)
        for request in (chat(key=edge.key), get("/v1/models", key=edge.key)):
            response = await client.ask(request)
            assert (response.status, response.code) == (status, code)
            assert response.header("retry-after") == ("1" if status == 503 else None)
    assert provider.calls.total == 1


async def test_key_expires_while_it_is_known(edge: EdgeUnderTest) -> None:
    edge.put_key(edge.key, expires_at_us=now_us() + 400_000)
    async with edge.client() as client:
        assert (await client.ask(chat(key=edge.key))).status == 200

        async def is_refused() -> bool:
            return (await client.ask(chat(key=edge.key))).code == "key_expired"

        ends_at = time.monotonic() + 5
        while not await is_refused():
            assert time.monotonic() < ends_at


async def test_running_answer_goes_on_when_its_key_is_revoked(edge: EdgeUnderTest, provider: FakeProvider) -> None:
    async with edge.client() as client:
        client.send(chat("gate_at=2&write=each", key=edge.key, stream=True))
        await until(lambda: provider.calls.total == 1)
        revoked(edge)
        await until(lambda: provider.calls.recent[0].events_sent == 2)
        provider.release()
        assert (await client.read_response()).frames[-1] == "[DONE]"
    assert (await edge.record()).outcome == "success"


async def test_unknown_key_is_503_while_the_mirror_is_stale(edge: EdgeUnderTest) -> None:
    edge.is_fresh = False
    response = await ask(edge, new_key())
    assert (response.status, response.code) == (503, "dependency_unavailable")
    assert response.header("retry-after") == "1"
    # A known key works on, and a mistyped one is wrong for certain.
    assert (await ask(edge)).status == 200
    assert (await ask(edge, edge.key[:-1] + "_")).code == "invalid_key"
    edge.is_fresh = True
    assert (await ask(edge, new_key())).code == "invalid_key"


async def test_new_key_works_when_it_was_refused_before(edge: EdgeUnderTest) -> None:
    key = new_key()
    assert (await ask(edge, key)).code == "invalid_key"
    edge.put_key(key, id="key_2")
    assert (await ask(edge, key)).status == 200
    assert edge.records[-1].key == "key_2"


async def test_refusals_are_counted_by_reason_and_never_name_the_key(edge: EdgeUnderTest) -> None:
    for _ in range(3):
        await ask(edge, "' OR 1=1 --")
    assert edge.edge.refused_keys._counts == {("invalid_key", "127.0.0.1"): 3}


@pytest.mark.parametrize("allowed", [None, (), ("demo",), ("de*",), ("*",), ("org/*",), ("org/a",), ("other", "demo")])
async def test_list_shows_exactly_what_a_call_accepts(
    edge: EdgeUnderTest, provider: FakeProvider, allowed: tuple[str, ...] | None
) -> None:
    edge.put_model("org/a")
    edge.put_model("org/a/b:free")
    edge.put_model("delta")
    edge.put_provider("prv_off", enabled=False)
    edge.put_model("off", providers=("prv_off",))
    edge.put_model("half", providers=("prv_off", "prv_1"))
    edge.put(Route(id="rte_gone", name="g", alias="gone", targets=(Target(model="mod_none"),)))
    edge.put(Route(id="rte_dis", name="d", alias="disabled", enabled=False, targets=(Target(model="mod_demo_prv_1"),)))
    edge.put(Route(id="rte_own", name="o", alias="own", tenant="ten_1", targets=(Target(model="mod_demo_prv_1"),)))
    edge.put(Route(id="rte_not", name="n", alias="not-mine", tenant="ten_2", targets=(Target(model="mod_demo_prv_1"),)))
    edge.put(Route(id="rte_hid", name="h", alias="delta", tenant="ten_1", enabled=False, targets=()))
    edge.put_key(edge.key, allowed_models=allowed)
    aliases = ["demo", "delta", "org/a", "org/a/b:free", "off", "half", "gone", "disabled", "own", "not-mine"]
    callable_ones = [alias for alias in aliases if (await ask(edge, model=alias)).status == 200]
    response = await models(edge)
    assert [row["id"] for row in response.json["data"]] == sorted(callable_ones)
    for alias in aliases:
        one = await models(edge, path=f"/v1/models/{alias}")
        assert one.status == (200 if alias in callable_ones else 404)
    if allowed is None:
        assert sorted(callable_ones) == ["demo", "half", "org/a", "org/a/b:free", "own"]


async def test_model_is_refused_when_the_key_may_not_call_it(edge: EdgeUnderTest, provider: FakeProvider) -> None:
    edge.put_key(edge.key, allowed_models=("other",))
    response = await ask(edge)
    assert (response.status, response.code) == (403, "model_not_allowed")
    assert response.json["error"]["param"] == "model"
    assert provider.calls.total == 0
    record = edge.records[0]
    assert (record.outcome, record.status, record.error_code) == ("rejected", 403, "model_not_allowed")
    assert (record.requested_model, record.cost_nano_usd, record.usage_source) == ("demo", 0, "none")


async def test_no_other_model_reaches_the_provider_than_the_one_that_was_checked(
    edge: EdgeUnderTest, provider: FakeProvider
) -> None:
    """Two readers of one body may take different members of one name."""
    edge.put_model("fake-gpt")
    edge.put_key(edge.key, allowed_models=("fake-gpt",))
    for body in (
        b'{"model":"costly","model":"fake-gpt","messages":[]}',
        b'{"model":"costly","mod\\u0065l":"fake-gpt","messages":[]}',
        b'{"mod\\u0065l":"costly","model":"fake-gpt","messages":[]}',
    ):
        async with edge.client() as client:
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: e\r\nx-api-key: {edge.key}\r\ncontent-length: {len(body)}\r\n\r\n"
            response = await client.ask(head.encode() + body)
        assert (response.status, response.code) == (400, "invalid_request")
    assert provider.calls.total == 0


async def test_list_has_what_sdks_read(edge: EdgeUnderTest) -> None:
    response = await models(edge)
    assert response.json["object"] == "list"
    assert response.json["data"] == [
        {
            "id": "demo",
            "object": "model",
            "created": 0,
            "owned_by": "sluicegate",
            "model_type": "chat",
            "capabilities": [],
        }
    ]
    one = await models(edge, path="/openai/v1/models/demo")
    assert one.json == response.json["data"][0]
    assert [record.endpoint for record in edge.records] == ["models", "models"]
    assert [record.cost_nano_usd for record in edge.records] == [0, 0]


@pytest.mark.parametrize("path", ["/v1/models/a%2Fb%25", "/models/a/b%25", "/openai/v1/models/a/b%25"])
async def test_model_is_found_with_slashes_and_escapes_in_its_id(edge: EdgeUnderTest, path: str) -> None:
    edge.put_model("a/b%")
    assert (await models(edge, path=path)).json["id"] == "a/b%"


async def test_tenants_see_their_own_route_first(edge: EdgeUnderTest, provider: FakeProvider) -> None:
    edge.put_model("mine", name="their-model")
    edge.put(Route(id="rte_own", name="o", alias="demo", tenant="ten_1", targets=(Target(model="mod_mine_prv_1"),)))
    response = await ask(edge)
    assert response.header("x-sluicegate-model") == "their-model"


async def test_journal_that_is_full_refuses(edge: EdgeUnderTest, provider: FakeProvider) -> None:
    edge.journal.is_full = True
    response = await ask(edge)
    assert (response.status, response.code) == (503, "gateway_overloaded")
    edge.journal.is_full, edge.journal.fails = False, True
    response = await ask(edge)
    assert (response.status, response.code) == (503, "gateway_overloaded")
    assert provider.calls.total == 0
    assert [record.outcome for record in edge.records] == ["rejected", "rejected"]


async def test_fault_of_the_gateway_is_a_500_with_its_record(
    edge: EdgeUnderTest, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("a bug")

    async def check(client: RawClient, request: bytes) -> None:
        response = await client.ask(request)
        assert (response.status, response.code) == (500, "internal_error")
        assert response.header("x-request-id") == edge.records[-1].request_id

    async with edge.client() as client:
        with monkeypatch.context() as patched:
            patched.setattr(edge.view, "targets", broken)
            await check(client, chat(key=edge.key))
        with monkeypatch.context() as patched:
            patched.setattr(edge.view, "callable_routes", broken)
            await check(client, get("/v1/models", key=edge.key))
        assert (await client.ask(chat(key=edge.key))).status == 200
    assert edge.edge.metrics.in_flight == 0
