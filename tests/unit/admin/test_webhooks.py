"""Webhooks: where they may lead, what of them the audit shows, what their secrets look like."""

import base64
import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from sluicegate.admin.webhooks.reach import LookUp, look_up, private_reason
from sluicegate.admin.webhooks.repository import CircuitRow, SecretRow, WebhookRow
from sluicegate.admin.webhooks.schemas import NewWebhook, SecretRotation
from sluicegate.admin.webhooks.secrets import new_secret
from sluicegate.admin.webhooks.snapshots import webhook_snapshot, without_path
from sluicegate.runtime.addresses import Address

NOW = datetime(2027, 1, 1, tzinfo=UTC)


def names(**known: str) -> LookUp:
    """Return a look-up that knows these names only."""

    async def look(host: str) -> Sequence[Address]:
        return [ipaddress.ip_address(text) for text in known.get(host.replace(".", "_"), "").split()]

    return look


async def test_url_is_private_when_its_name_leads_to_private_addresses_only() -> None:
    look = names(inner_example="10.0.0.7 ::1", both_example="10.0.0.7 1.1.1.1", outer_example="1.1.1.1")
    reason = await private_reason("https://inner.example/x", look)
    assert reason == "inner.example leads to the private address 10.0.0.7"
    for host in ("both.example", "outer.example", "unknown.example"):
        assert await private_reason(f"https://{host}/x", look) is None


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST", "localhost.", "a.localhost", "db.internal", "printer.local", "x.localdomain"],
)
async def test_url_is_private_when_its_name_is_local_whoever_is_asked(host: str) -> None:
    assert await private_reason(f"http://{host}:9000/x", names()) is not None


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "169.254.169.254", "[::1]", "[::ffff:10.0.0.1]", "127.1", "2130706433", "0x7f000001", "0"]
)
async def test_url_is_private_when_it_is_a_private_address_however_it_is_written(host: str) -> None:
    assert await private_reason(f"https://{host}/x", look_up) is not None


@pytest.mark.parametrize("host", ["1.1.1.1", "[2606:4700::1111]"])
async def test_url_is_not_private_when_it_is_a_public_address(host: str) -> None:
    assert await private_reason(f"https://{host}/x", look_up) is None


@pytest.mark.parametrize(
    "url", ["https://hooks.example.com/a/b?c=d&e=%20", "http://1.1.1.1:8080", "https://x.example/a~b/$c", "HTTPS://X/"]
)
def test_url_is_taken(url: str) -> None:
    assert NewWebhook(name="w", url=url).url == url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "hooks.example.com/x",
        "ftp://x/y",
        "file:///etc/passwd",
        "https://",
        "https://user:pw@x/y",
        "https://x/y#z",
        "https://x:0/y",
        "https://x:99999/y",
        "https://x/y z",
        "https://x/y\r\nz: 1",
        "https://x/../y",
        "https://x/y?a=<b>",
        "https://bücher.example/",
        "https://[fe80::1%25eth0]/",
        f"https://x/{'a' * 2000}",
    ],
)
def test_url_is_refused(url: str) -> None:
    with pytest.raises(ValidationError, match="url"):
        NewWebhook(name="w", url=url)


@pytest.mark.parametrize("body", [{"format": "xml"}, {"format": None}, {"allow_private_addresses": 1}, {"secret": "x"}])
def test_webhook_is_refused_when_a_field_makes_no_sense(body: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        NewWebhook.model_validate({"name": "w", "url": "https://x.example"} | body)


@pytest.mark.parametrize("hours", [-1, 721, 1.5, "24", None, True])
def test_overlap_is_refused_when_it_is_no_number_of_hours_in_a_month(hours: object) -> None:
    with pytest.raises(ValidationError, match="overlap_hours"):
        SecretRotation.model_validate({"overlap_hours": hours})


def test_secret_is_new_each_time_and_of_256_bits() -> None:
    secrets = {new_secret() for _ in range(100)}
    assert len(secrets) == 100
    for secret in secrets:
        assert len(base64.b64decode(secret.removeprefix("whsec_"), validate=True)) == 32


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://hooks.slack.com/services/T0/B0/xyz", "https://hooks.slack.com/***"),
        ("http://10.0.0.1:8080/?token=1", "http://10.0.0.1:8080/***"),
        ("https://x.example", "https://x.example/"),
        ("https://x.example/", "https://x.example/"),
    ],
)
def test_url_is_shown_without_what_may_be_a_secret(url: str, shown: str) -> None:
    assert without_path(url) == shown


def test_snapshot_holds_configuration_and_no_secret() -> None:
    row = WebhookRow(
        id="whk_1",
        tenant=None,
        name="w",
        url="https://hooks.slack.com/services/T0/B0/xyz",
        format="slack",
        enabled=True,
        allow_private_addresses=False,
        version=1,
        created_at=NOW,
        updated_at=NOW,
        secrets=(SecretRow("whs_1", NOW, None),),
        circuit=CircuitRow("open", 5, NOW, "refused", NOW),
    )
    shown = webhook_snapshot(row)
    assert "xyz" not in str(shown)
    assert "circuit" not in shown
    assert shown["secrets"] == [{"id": "whs_1", "created_at": "2027-01-01T00:00:00Z", "expires_at": None}]
