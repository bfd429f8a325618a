"""Bodies of the webhooks' endpoints. A secret goes out once, when it is made, and never in."""

from typing import Annotated, Final

from pydantic import AfterValidator, Field

from sluicegate.admin.fields import Answer, Name, Recorded, RecordId, Request, Time, unchanged
from sluicegate.admin.listing import ListQuery
from sluicegate.admin.urls import http_url
from sluicegate.admin.webhooks import repository
from sluicegate.admin.webhooks.repository import CircuitState

MAX_OVERLAP_HOURS: Final = 30 * 24


def _url(text: str) -> str:
    http_url(text)
    return text


Url = Annotated[
    str,
    Field(
        min_length=1,
        max_length=2_000,
        description="Alerts are posted there. In the audit only its host is shown, because many such URLs are secrets.",
        examples=["https://alerts.example.com/sluicegate"],
    ),
    AfterValidator(_url),
]
Format = Annotated[
    repository.Format,
    Field(description='`json`: our own event. `slack`: `{"text": …}`, which Slack and most chats take.'),
]
Enabled = Annotated[bool, Field(description="False: no alert goes there; a test does.")]
AllowPrivateAddresses = Annotated[
    bool, Field(description="Let it lead to addresses that are not public, such as those of your own network.")
]
Secret = Annotated[
    str,
    Field(
        description="What deliveries are signed with. It is shown here, once. `x-sluicegate-signature` holds "
        "`t=<timestamp>,v1=<hex>` (a `v1` per secret): HMAC-SHA256 over `timestamp.body`, keyed with this text as "
        "it stands. `webhook-signature` is that of Standard Webhooks 1.0.",
        examples=["whsec_…"],
    ),
]


class NewWebhook(Request):
    """A webhook to be made."""

    name: Name = Field(examples=["On-call channel"])
    url: Url
    tenant: RecordId | None = Field(
        default=None, description="It gets the alerts of this tenant's budgets. Null: those of all budgets."
    )
    format: Format = "json"
    enabled: Enabled = True
    allow_private_addresses: AllowPrivateAddresses = False


class WebhookPatch(Request):
    """What to change; what is not named stays."""

    name: Name = Field(default_factory=unchanged)
    url: Url = Field(default_factory=unchanged)
    format: Format = Field(default_factory=unchanged)
    enabled: Enabled = Field(default_factory=unchanged)
    allow_private_addresses: AllowPrivateAddresses = Field(default_factory=unchanged)


class SecretRotation(Request):
    """How a secret is replaced."""

    overlap_hours: int = Field(
        default=24,
        ge=0,
        le=MAX_OVERLAP_HOURS,
        description="Deliveries are signed with the earlier secrets too for so long. 0: with none of them any more.",
    )


class WebhookSecret(Answer):
    """A secret that deliveries are signed with now."""

    id: str = Field(examples=["whs_06f3k2m9v5w8x1y4z7a0b3c6d9"])
    created_at: Time
    expires_at: Time | None = Field(description="Null: the present one.")


class Circuit(Answer):
    """What deliveries have learned lately. open: it failed too often, nothing is sent until then. gone: it said so."""

    state: CircuitState
    failures: int = Field(description="In a row.")
    open_until: Time | None
    last_error: str | None
    changed_at: Time


class Webhook(Recorded):
    """Where alerts are delivered."""

    id: str = Field(examples=["whk_06f3k2m9v5w8x1y4z7a0b3c6d9"])
    tenant: str | None
    name: str = Field(examples=["On-call channel"])
    url: str = Field(examples=["https://alerts.example.com/sluicegate"])
    format: Format
    enabled: Enabled
    allow_private_addresses: AllowPrivateAddresses
    secrets: list[WebhookSecret] = Field(description="The present one first.")
    circuit: Circuit | None = Field(description="Null: nothing bad is known.")


class WebhookWithSecret(Webhook):
    """A webhook whose secret was just made."""

    secret: Secret


class WebhookPage(Answer):
    """A page of webhooks, oldest first."""

    data: list[Webhook]
    next: str | None = Field(description="The `cursor` of the next page; null on the last.")


class WebhookQuery(ListQuery):
    """Which webhooks."""

    id_prefix = "whk"

    tenant: RecordId | None = Field(default=None, description="Only those of this tenant.")
    name: str | None = Field(default=None, description="Only those of exactly this name.")
