"""Bodies of the tenants' endpoints."""

from typing import Annotated

from pydantic import Field

from sluicegate.admin.changes.changes import Propagation
from sluicegate.admin.fields import Answer, Enabled, Name, Recorded, Request, unchanged
from sluicegate.admin.limits import NO_LIMITS, Limits, WantedLimits
from sluicegate.admin.listing import ListQuery

_EACH_END_USER = Field(description="Of each end user by itself (the request's `user` field), known or not.")
_NEW_KEYS = Field(description="Given to new keys for what is not stated when they are made.")


class NewTenant(Request):
    """A tenant to be made."""

    name: Name = Field(examples=["Acme"])
    enabled: Enabled = True
    limits: WantedLimits = NO_LIMITS
    end_user_limits: Annotated[WantedLimits, _EACH_END_USER] = NO_LIMITS
    default_key_limits: Annotated[WantedLimits, _NEW_KEYS] = NO_LIMITS


class TenantPatch(Request):
    """What to change; what is not named stays."""

    name: Name = Field(default_factory=unchanged)
    enabled: Enabled = Field(default_factory=unchanged)
    limits: WantedLimits = Field(default_factory=unchanged)
    end_user_limits: Annotated[WantedLimits, _EACH_END_USER] = Field(default_factory=unchanged)
    default_key_limits: Annotated[WantedLimits, _NEW_KEYS] = Field(default_factory=unchanged)


class Tenant(Recorded):
    """A customer of the platform: the root of departments, teams and keys."""

    id: str = Field(examples=["ten_06f3k2m9v5w8x1y4z7a0b3c6d9"])
    name: str = Field(examples=["Acme"])
    limits: Limits
    end_user_limits: Annotated[Limits, _EACH_END_USER]
    default_key_limits: Annotated[Limits, _NEW_KEYS]


class TenantChanged(Propagation, Tenant):
    """A tenant after a change."""


class TenantPage(Answer):
    """A page of tenants, oldest first."""

    data: list[Tenant]
    next: str | None = Field(description="The `cursor` of the next page; null on the last.")


class TenantQuery(ListQuery):
    """Which tenants."""

    id_prefix = "ten"

    name: str | None = Field(default=None, description="Only the one of exactly this name.")
