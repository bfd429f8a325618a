"""Bodies of the keys' endpoints."""

from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from sluicegate.admin.changes.changes import Propagation
from sluicegate.admin.fields import Answer, Enabled, ExactName, Name, Recorded, RecordId, Request, Time, unchanged
from sluicegate.admin.limits import NO_LIMITS, Limits, WantedLimits
from sluicegate.admin.listing import ListQuery

KeyStatus = Literal["active", "disabled", "expired", "revoked"]


def _star_at_the_end(pattern: str) -> str:
    if "*" in pattern[:-1]:
        raise ValueError("may hold `*` only at its end")
    return pattern


ModelPattern = Annotated[ExactName, AfterValidator(_star_at_the_end)]
AllowedModels = Annotated[
    list[ModelPattern] | None,
    Field(
        max_length=500,
        description="Aliases this key may call; `*` at the end stands for any rest. Null: all. Empty: none.",
        examples=[["gpt-4o", "team-search/*"]],
    ),
]
ExpiresAt = Annotated[Time | None, Field(description="From then on the key is refused. Null: never.")]


def _in_the_future(moment: datetime | None) -> datetime | None:
    if moment is not None and moment <= datetime.now(UTC):
        raise ValueError("must be in the future")
    return moment


class NewKey(Request):
    """A key to be made."""

    team: RecordId = Field(description="The team's id.")
    name: Name = Field(examples=["search, production"])
    enabled: Enabled = True
    expires_at: Annotated[ExpiresAt, AfterValidator(_in_the_future)] = None
    allowed_models: AllowedModels = None
    limits: WantedLimits = Field(
        default=NO_LIMITS,
        description="What is not named comes from the tenant's `default_key_limits`, as they are now. Null: no limit.",
    )


class KeyPatch(Request):
    """What to change; what is not named stays."""

    name: Name = Field(default_factory=unchanged)
    enabled: Enabled = Field(default_factory=unchanged)
    expires_at: ExpiresAt = Field(default_factory=unchanged)
    allowed_models: AllowedModels = Field(default_factory=unchanged)
    limits: WantedLimits = Field(default_factory=unchanged)


class Key(Recorded):
    """A gateway key. Its text was shown once and is not known any more."""

    id: str = Field(examples=["key_06f3k2m9v5w8x1y4z7a0b3c6d9"])
    tenant: str
    department: str | None
    team: str
    name: str = Field(examples=["search, production"])
    prefix: str = Field(description="The first characters of its text.", examples=["sgk_7Qm2xYp0"])
    status: KeyStatus = Field(description="As of now, of the key alone: a disabled team refuses it as well.")
    expires_at: Time | None
    revoked_at: Time | None
    allowed_models: list[str] | None
    limits: Limits


class KeyChanged(Propagation, Key):
    """A key after a change."""


class KeyCreated(KeyChanged):
    """A new key."""

    key: str = Field(
        description="The key itself. It is shown here, once; it is stored nowhere.",
        examples=["sgk_7Qm2xYp0…"],
    )


class KeyPage(Answer):
    """A page of keys, oldest first."""

    data: list[Key]
    next: str | None = Field(description="The `cursor` of the next page; null on the last.")


class KeyQuery(ListQuery):
    """Which keys."""

    id_prefix = "key"

    tenant: RecordId | None = Field(default=None, description="Only those of this tenant.")
    department: RecordId | None = Field(default=None, description="Only those of this department.")
    team: RecordId | None = Field(default=None, description="Only those of this team.")
    name: str | None = Field(default=None, description="Only those of exactly this name.")
    prefix: str | None = Field(default=None, description="Only those whose text begins like this.")
