"""Request bodies: what they take, what they refuse."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from sluicegate.admin.budgets.schemas import BudgetPatch, NewBudget
from sluicegate.admin.departments.schemas import DepartmentPatch, NewDepartment
from sluicegate.admin.fields import changes_of, to_us
from sluicegate.admin.keys.schemas import KeyPatch, NewKey
from sluicegate.admin.models.schemas import ModelPatch, NewModel
from sluicegate.admin.providers.schemas import NewProvider, ProviderPatch
from sluicegate.admin.routes.schemas import NewRoute, RoutePatch
from sluicegate.admin.teams.schemas import NewTeam, TeamPatch
from sluicegate.admin.tenants.schemas import NewTenant, TenantPatch
from sluicegate.admin.webhooks.schemas import NewWebhook, WebhookPatch

BODIES: list[tuple[type[BaseModel], dict[str, Any]]] = [
    (NewTenant, {"name": "Acme"}),
    (NewDepartment, {"tenant": "ten_1", "name": "Research"}),
    (NewTeam, {"tenant": "ten_1", "name": "Search"}),
    (NewKey, {"team": "tea_1", "name": "production"}),
    (NewProvider, {"name": "OpenAI", "base_url": "https://api.openai.com/v1"}),
    (NewModel, {"provider": "prv_1", "name": "gpt"}),
    (NewRoute, {"alias": "gpt", "targets": [{"model": "mod_1"}]}),
    (NewBudget, {"name": "b", "scope": "key", "scope_id": "key_1", "limit_usd": "5", "period": "month"}),
    (BudgetPatch, {"name": "new"}),
    (NewWebhook, {"name": "w", "url": "https://alerts.example.com/x"}),
    (WebhookPatch, {"name": "new"}),
    *((patch, {"name": "new"}) for patch in (TenantPatch, DepartmentPatch, TeamPatch, KeyPatch, ProviderPatch)),
    (ModelPatch, {"name": "new"}),
    (RoutePatch, {"name": "new"}),
]


@pytest.mark.parametrize(("kind", "body"), BODIES)
def test_body_is_taken_when_minimal(kind: type[BaseModel], body: dict[str, Any]) -> None:
    kind.model_validate(body)


@pytest.mark.parametrize(("kind", "body"), BODIES)
def test_body_is_refused_when_a_field_is_unknown(kind: type[BaseModel], body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="extra_forbidden"):
        kind.model_validate(body | {"budget": 1})


@pytest.mark.parametrize(("kind", "body"), BODIES)
@pytest.mark.parametrize("enabled", [0, 1, "true", None])
def test_body_is_refused_when_a_type_only_looks_right(
    kind: type[BaseModel], body: dict[str, Any], enabled: object
) -> None:
    with pytest.raises(ValidationError, match="enabled"):
        kind.model_validate(body | {"enabled": enabled})


@pytest.mark.parametrize(
    "name", ["会社", "Ünïcode", "שלום", "نام\u200cگذاری", "👩\u200d🚀", "a" * 200, "Robert'); DROP TABLE keys;--"]
)
def test_name_is_taken_in_any_script(name: str) -> None:
    assert NewTenant(name=name).name == name


def test_name_is_put_into_one_form() -> None:
    assert NewTenant(name="  Cafe\u0301 ").name == "Café"


@pytest.mark.parametrize(
    "name", ["", " ", "a\x00b", "a\nb", "a\u202eb", "a\u2028b", "\ufeff", "a" * 201, "\x7f", "\ud83d"]
)
def test_name_is_refused_when_it_does_not_look_like_what_it_is(name: str) -> None:
    with pytest.raises(ValidationError, match="name"):
        NewTenant(name=name)


def test_patch_tells_null_from_absence() -> None:
    assert changes_of(KeyPatch.model_validate({"expires_at": None})) == {"expires_at": None}
    assert changes_of(KeyPatch.model_validate({})) == {}


@pytest.mark.parametrize("text", ["2027-01-31T12:00:00Z", "2027-01-31T13:00:00+01:00", "2027-01-31T12:00:00.000000Z"])
def test_time_is_taken_in_any_zone(text: str) -> None:
    patch = KeyPatch.model_validate({"expires_at": text})
    assert patch.expires_at == datetime(2027, 1, 31, 12, tzinfo=UTC)
    assert patch.model_dump(mode="json")["expires_at"] == "2027-01-31T12:00:00Z"


@pytest.mark.parametrize(
    "value",
    [
        "",
        "tomorrow",
        "2027-01-31",
        "2027-01-31T12:00:00",
        "2027-02-30T12:00:00Z",
        "2027-W05-1T12:00:00Z",
        "20270131T120000Z",
        "2027-01-31T12Z",
        "2027-01-31T12:00:00+01:00:30",
        1_800_000_000,
        # PostgreSQL and Python disagree about the ends of time.
        "0001-01-01T00:00:00Z",
        "0001-01-01T00:00:00+14:00",
        "1969-12-31T23:59:59.999999Z",
        "1970-01-01T00:59:59+01:00",
        "9999-12-31T23:59:59.999999Z",
        "9999-12-31T23:59:59-14:00",
    ],
)
def test_time_is_refused_without_a_zone_or_sense(value: object) -> None:
    with pytest.raises(ValidationError, match="expires_at"):
        KeyPatch.model_validate({"expires_at": value})


def test_new_key_is_refused_when_it_has_expired_already() -> None:
    past = (datetime.now(UTC) - timedelta(seconds=1)).isoformat()
    with pytest.raises(ValidationError, match=r"expires_at\n.*future"):
        NewKey.model_validate({"team": "tea_1", "name": "k", "expires_at": past})


def test_to_us_is_exact() -> None:
    assert to_us(datetime(2026, 11, 30, 8, 51, 0, 123_457, tzinfo=UTC)) == 1_796_028_660_123_457


@pytest.mark.parametrize("patterns", [["*"], ["gpt-4o", "team/*"], []])
def test_allowed_models_are_taken(patterns: list[str]) -> None:
    assert NewKey(team="tea_1", name="k", allowed_models=patterns).allowed_models == patterns


@pytest.mark.parametrize("patterns", [["a*b"], ["*a"], [""], [" a"], "gpt", [1]])
def test_allowed_models_are_refused(patterns: object) -> None:
    with pytest.raises(ValidationError, match="allowed_models"):
        NewKey.model_validate({"team": "tea_1", "name": "k", "allowed_models": patterns})


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://api.openai.com/v1/", "https://api.openai.com/v1"),
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("HTTP://my_host-1.Example.:80/a%20b/~c//", "HTTP://my_host-1.Example.:80/a%20b/~c"),
    ],
)
def test_base_url_loses_its_last_slash(url: str, expected: str) -> None:
    assert NewProvider(name="p", base_url=url).base_url == expected


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host/v1",
        "https://",
        "host/v1",
        "https://user:password@host/v1",
        "https://host/v1?key=1",
        "https://host/v1?",
        "https://host/v1#x",
        "https://host:99999/v1",
        "https://host:0/v1",
        "https://host/v1\r\nx: y",
        "https://ho st/v1",
        "https://host:port",
        "https://bücher.example/v1",
        "https://[::1/v1",
        "https://[fe80::1%25eth0]/v1",
        "https://[v1.x]/v1",
        "https://a..b/v1",
        "https://-a/v1",
        f"https://{'a' * 64}/v1",
        f"https://{'a.' * 130}a/v1",
        'https://"/v1',
        "https://h%61st/v1",
        "https://host\\v1",
        "https://host/v1\\x",
        "https://host/../v1",
        "https://host/a/./v1",
        "https://host/%zz",
    ],
)
def test_base_url_is_refused(url: str) -> None:
    with pytest.raises(ValidationError, match="base_url"):
        NewProvider(name="p", base_url=url)


@pytest.mark.parametrize("api_key", ["", "with space", "line\r\nbreak", "ключ"])
def test_api_key_is_refused_when_no_header_can_carry_it(api_key: str) -> None:
    with pytest.raises(ValidationError, match="api_key"):
        NewProvider(name="p", base_url="https://host", api_key=api_key)


@pytest.mark.parametrize("alias", ["a*", "*", " a", "", "a\nb", ".", "..", "a/../b"])
def test_alias_is_refused(alias: str) -> None:
    with pytest.raises(ValidationError, match="alias"):
        NewRoute.model_validate({"alias": alias, "targets": [{"model": "mod_1"}]})


@pytest.mark.parametrize("targets", [[], [{"model": "a"}, {"model": "a"}], [{"model": "a", "weight": 1}], ["a"]])
def test_targets_are_refused(targets: object) -> None:
    with pytest.raises(ValidationError, match="targets"):
        NewRoute.model_validate({"alias": "a", "targets": targets})
