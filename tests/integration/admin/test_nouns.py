"""Each noun over the API: made, read, listed, changed, deleted; and what is refused."""

from typing import Any

import pytest

from sluicegate.contracts.ids import new_id

from .conftest import Running, unique

NOUNS = ("tenants", "departments", "teams", "keys", "providers", "models", "routes", "budgets", "webhooks")
TOLD = {"propagated", "edges"}
# What only the answer that made a record holds.
ONLY_AT_FIRST = dict.fromkeys(NOUNS, TOLD) | {"keys": TOLD | {"key"}, "webhooks": {"secret"}}


async def body_for(admin: Running, noun: str) -> dict[str, Any]:
    """Return a minimal body for a new record, with its parents made."""
    if noun == "tenants":
        return {"name": unique("tenant")}
    if noun in {"departments", "teams"}:
        return {"tenant": (await admin.make("tenants", name=unique("tenant")))["id"], "name": "会社"}
    if noun == "keys":
        return {"team": (await admin.make_team())["id"], "name": "production"}
    if noun == "providers":
        return {"name": unique("provider"), "base_url": "https://api.example.com/v1"}
    if noun == "models":
        provider = await admin.make("providers", name=unique("provider"), base_url="https://api.example.com/v1")
        return {"provider": provider["id"], "name": "gpt-4o-mini"}
    if noun == "webhooks":
        return {"name": unique("webhook"), "url": "https://1.1.1.1/hook"}
    if noun == "budgets":
        team = await admin.make_team()
        return {"name": "b", "scope": "team", "scope_id": team["id"], "limit_usd": "12.5", "period": "month"}
    return {"alias": unique("alias"), "targets": [{"model": (await admin.make_model())["id"]}]}


@pytest.mark.parametrize("noun", NOUNS)
async def test_record_lives_through_its_life(admin: Running, noun: str) -> None:
    body = await body_for(admin, noun)
    answer = await admin.client.post(f"/api/{noun}", json=body)
    made = answer.json()
    assert (answer.status_code, answer.headers["etag"]) == (201, '"1"')
    assert made.items() >= body.items()
    url = f"/api/{noun}/{made['id']}"

    read = await admin.client.get(url)
    assert read.json().items() <= made.items()
    assert made.keys() - read.json().keys() == ONLY_AT_FIRST[noun]

    changed = await admin.client.patch(url, json={"name": "another name", "enabled": False})
    assert (changed.status_code, changed.headers["etag"]) == (200, '"2"')
    assert changed.json().items() >= {"name": "another name", "enabled": False, "version": 2}.items()
    assert changed.json()["updated_at"] > made["updated_at"]

    assert made["id"] in [record["id"] for record in await list_all(admin, f"/api/{noun}")]
    deleted = await admin.client.delete(url)
    assert (deleted.status_code, deleted.json()["id"], deleted.json()["deleted_records"]) == (200, made["id"], 1)
    assert made["id"] not in [record["id"] for record in await list_all(admin, f"/api/{noun}")]
    for gone in (
        await admin.client.get(url),
        await admin.client.patch(url, json={"enabled": True}),
        await admin.client.delete(url),
    ):
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "not_found")


async def list_all(admin: Running, url: str, **query: str) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    cursor = None
    while True:
        page = (
            await admin.client.get(url, params=query | {"limit": "3"} | ({"cursor": cursor} if cursor else {}))
        ).json()
        records += page["data"]
        cursor = page["next"]
        if cursor is None:
            return records


@pytest.mark.parametrize("noun", NOUNS)
async def test_body_is_422_when_a_field_is_unknown(admin: Running, noun: str) -> None:
    body = await body_for(admin, noun)
    made = await admin.make(noun, **body)
    for answer in (
        await admin.client.post(f"/api/{noun}", json=body | {"max_budget": 10}),
        await admin.client.patch(f"/api/{noun}/{made['id']}", json={"max_budget": 10}),
    ):
        assert answer.status_code == 422
        assert answer.json()["error"]["fields"] == [{"field": "max_budget", "message": "There is no such field"}]
    assert (await admin.client.get(f"/api/{noun}", params={"colour": "red"})).status_code == 422


async def test_pages_hold_each_record_once_and_in_order(admin: Running) -> None:
    tenant = await admin.make("tenants", name=unique("tenant"))
    made = [
        (await admin.make("departments", tenant=tenant["id"], name=f"department {place}"))["id"] for place in range(7)
    ]
    listed = [record["id"] for record in await list_all(admin, "/api/departments", tenant=tenant["id"])]
    assert listed == made
    one_page = (await admin.client.get("/api/departments", params={"tenant": tenant["id"], "limit": 7})).json()
    assert (len(one_page["data"]), one_page["next"]) == (7, None)


@pytest.mark.parametrize("limit", [0, 501, "x"])
async def test_list_is_422_when_the_limit_is_out_of_bounds(admin: Running, limit: object) -> None:
    assert (await admin.client.get("/api/tenants", params={"limit": str(limit)})).status_code == 422


async def test_lists_are_filtered(admin: Running) -> None:
    team, other = await admin.make_team(), await admin.make_team()
    key = await admin.make("keys", team=team["id"], name="mine")
    await admin.make("keys", team=other["id"], name="theirs")
    for query in (
        {"team": team["id"]},
        {"tenant": team["tenant"]},
        {"prefix": key["prefix"]},
        {"name": "mine", "team": team["id"]},
    ):
        listed = (await admin.client.get("/api/keys", params=query)).json()["data"]
        assert [record["id"] for record in listed] == [key["id"]]


@pytest.mark.parametrize("noun", ["tenants", "departments", "teams", "providers", "models", "routes", "webhooks"])
async def test_name_is_409_when_it_is_taken_and_free_after_deletion(admin: Running, noun: str) -> None:
    body = await body_for(admin, noun)
    made = await admin.make(noun, **body)
    answer = await admin.client.post(f"/api/{noun}", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "name_taken")
    assert answer.json()["error"]["fields"][0]["field"] == ("alias" if noun == "routes" else "name")
    await admin.client.delete(f"/api/{noun}/{made['id']}")
    assert (await admin.client.post(f"/api/{noun}", json=body)).status_code == 201


@pytest.mark.parametrize(
    ("noun", "body", "field"),
    [
        ("departments", {"tenant": "ten_none", "name": "x"}, "tenant"),
        ("teams", {"tenant": "ten_none", "name": "x"}, "tenant"),
        ("keys", {"team": "tea_none", "name": "x"}, "team"),
        ("providers", {"tenant": "ten_none", "name": "x", "base_url": "https://x"}, "tenant"),
        ("models", {"provider": "prv_none", "name": "x"}, "provider"),
        ("webhooks", {"tenant": "ten_none", "name": "x", "url": "https://1.1.1.1"}, "tenant"),
        ("routes", {"alias": "x", "targets": [{"model": "mod_none"}]}, "targets.0.model"),
        *(
            (
                "budgets",
                {"name": "x", "scope": scope, "scope_id": "none", "limit_usd": "1", "period": "day"},
                "scope_id",
            )
            for scope in ("key", "team", "department", "tenant", "provider", "model")
        ),
    ],
)
async def test_body_is_422_when_it_names_what_does_not_exist(
    admin: Running, noun: str, body: dict[str, Any], field: str
) -> None:
    answer = await admin.client.post(f"/api/{noun}", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "unknown_reference")
    assert answer.json()["error"]["fields"][0]["field"] == field


async def test_team_is_422_when_the_department_is_another_tenants(admin: Running) -> None:
    own = await admin.make("tenants", name=unique("tenant"))
    other = await admin.make("tenants", name=unique("tenant"))
    department = await admin.make("departments", tenant=other["id"], name="theirs")
    body = {"tenant": own["id"], "name": "x", "department": department["id"]}
    answer = await admin.client.post("/api/teams", json=body)
    assert (answer.status_code, answer.json()["error"]["fields"][0]["field"]) == (422, "department")


async def test_route_is_422_when_its_model_is_anothers(admin: Running) -> None:
    tenant = await admin.make("tenants", name=unique("tenant"))
    private = await admin.make_model(tenant=tenant["id"])
    targets = [{"model": private["id"]}]
    for_all = await admin.client.post("/api/routes", json={"alias": unique("a"), "targets": targets})
    assert (for_all.status_code, for_all.json()["error"]["fields"][0]["field"]) == (422, "targets.0.model")
    await admin.make("routes", alias=unique("a"), tenant=tenant["id"], targets=targets)


async def test_prices_are_exact_dated_and_versioned(admin: Running) -> None:
    model = await admin.make_model()
    url = f"/api/models/{model['id']}"
    later = {
        "valid_from": "2027-01-01T00:00:00Z",
        "input_usd_per_million": "0.000000001",
        "output_usd_per_million": "15",
        "cached_input_usd_per_million": "0",
        "cache_write_5m_usd_per_million": "3.75",
        "cache_write_1h_usd_per_million": "6",
        "reasoning_usd_per_million": "15.1",
    }
    always = {"input_usd_per_million": "0.15", "output_usd_per_million": "0.6"}
    first = (await admin.client.patch(url, json={"prices": [later, always]})).json()["prices"]
    assert [price["version"] for price in first] == [1, 2]
    assert first[1].items() >= later.items()
    assert (first[0]["valid_from"], first[0]["input_usd_per_million"]) == ("1970-01-01T00:00:00Z", "0.15")

    dearer = always | {"output_usd_per_million": "0.7"}
    second = (await admin.client.patch(url, json={"prices": [dearer, later]})).json()["prices"]
    assert [price["version"] for price in second] == [3, 2]
    third = (await admin.client.patch(url, json={"prices": [always, later]})).json()["prices"]
    assert [price["version"] for price in third] == [4, 2]


async def test_provider_never_shows_its_credential(admin: Running) -> None:
    secret = "sk-live-0123456789abcdefWXYZ"
    made = await admin.make("providers", name=unique("p"), base_url="https://x", api_key=secret)
    url = f"/api/providers/{made['id']}"
    assert (made["has_credential"], made["credential_hint"]) == (True, "WXYZ")
    listed = await admin.client.get("/api/providers")
    changed = await admin.client.patch(url, json={"api_key": "sk-other-0123456789abcd9876"})
    assert changed.json()["credential_hint"] == "9876"
    kept = await admin.client.patch(url, json={"max_connections": 7})
    assert (kept.json()["has_credential"], kept.json()["max_connections"]) == (True, 7)
    for answer in (await admin.client.get(url), listed, changed, kept):
        assert secret not in answer.text
    removed = await admin.client.patch(url, json={"api_key": None})
    assert (removed.json()["has_credential"], removed.json()["credential_hint"]) == (False, None)


async def test_change_is_409_when_the_record_is_not_what_was_read(admin: Running) -> None:
    team = await admin.make_team()
    url = f"/api/teams/{team['id']}"
    first = await admin.client.patch(url, json={"name": "one"}, headers={"if-match": '"1"'})
    assert first.status_code == 200
    for refused in (
        await admin.client.patch(url, json={"name": "two"}, headers={"if-match": '"1"'}),
        await admin.client.delete(url, headers={"if-match": '"1"'}),
    ):
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "version_conflict")
    assert (await admin.client.patch(url, json={"name": "two"}, headers={"if-match": "soon"})).status_code == 422
    assert (await admin.client.get(url)).json()["name"] == "one"


async def test_change_keeps_the_version_when_nothing_changes(admin: Running) -> None:
    model = await admin.make_model()
    answer = await admin.client.patch(f"/api/models/{model['id']}", json={"name": model["name"], "prices": []})
    assert answer.json()["version"] == 1


@pytest.mark.parametrize("noun", NOUNS)
async def test_cursor_is_422_when_it_is_none_of_this_list(admin: Running, noun: str) -> None:
    made = await admin.make(noun, **await body_for(admin, noun))
    foreign = new_id("evt")
    for cursor in ("nonsense", "0", foreign, made["id"].upper(), made["id"] + "0", made["id"][:-1]):
        answer = await admin.client.get(f"/api/{noun}", params={"cursor": cursor})
        assert answer.status_code == 422, cursor
        assert answer.json()["error"]["fields"] == [
            {"field": "cursor", "message": "must be the `next` of a page of this list"}
        ]
    assert (await admin.client.get(f"/api/{noun}", params={"cursor": made["id"]})).status_code == 200


@pytest.mark.parametrize("noun", NOUNS)
async def test_request_is_422_and_changes_nothing_when_a_query_parameter_is_unknown(admin: Running, noun: str) -> None:
    body = await body_for(admin, noun)
    before = len(await list_all(admin, f"/api/{noun}"))
    refused = await admin.client.post(f"/api/{noun}", params={"dry_run": "true"}, json=body)
    assert refused.status_code == 422
    assert refused.json()["error"]["fields"] == [{"field": "dry_run", "message": "There is no such query parameter"}]
    assert len(await list_all(admin, f"/api/{noun}")) == before
    made = await admin.make(noun, **body)
    url = f"/api/{noun}/{made['id']}"
    for method in ("GET", "PATCH", "DELETE"):
        body_of_it = {"enabled": False} if method == "PATCH" else None
        answer = await admin.client.request(method, url, params={"casacde": "true"}, json=body_of_it)
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_request"), method
    left = (await admin.client.get(url)).json()
    assert (left["enabled"], left["version"]) == (True, 1)


HOSTILE = "x'); DROP TABLE keys; -- \" \\ $1 %s {0} ; SELECT pg_sleep(9)"


async def test_hostile_text_is_data(admin: Running) -> None:
    tenant = await admin.make("tenants", name=HOSTILE)
    assert tenant["name"] == HOSTILE
    found = (await admin.client.get("/api/tenants", params={"name": HOSTILE})).json()["data"]
    assert [record["id"] for record in found] == [tenant["id"]]
    for query, status in (({"cursor": HOSTILE[:64]}, 422), ({"name": "' OR '1'='1"}, 200)):
        assert (await admin.client.get("/api/tenants", params=query)).status_code == status
    assert (await admin.client.get("/api/tenants/' OR 1=1 --")).status_code == 404
    assert (await admin.client.get("/api/keys", params={"prefix": "%"})).json()["data"] == []
    assert (await admin.client.get("/api/keys")).status_code == 200


@pytest.mark.parametrize("path", ["tenants/%00", "tenants?cursor=%00", "keys?prefix=%00", "keys?name=a%00b"])
async def test_request_is_422_when_it_holds_nul(admin: Running, path: str) -> None:
    answer = await admin.client.get(f"/api/{path}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_request")
    made = await admin.client.post("/api/keys", json={"team": "tea_\x00", "name": "k"})
    assert made.status_code == 422
