"""Bodies of the tenants' endpoints."""

from pydantic import Field

from sluicegate.admin.changes.changes import Propagation
from sluicegate.admin.fields import Answer, Enabled, Name, Recorded, Request, unchanged
from sluicegate.admin.listing import ListQuery


class NewTenant(Request):
    """A tenant to be made."""

    name: Name = Field(examples=["Acme"])
    enabled: Enabled = True


class TenantPatch(Request):
    """What to change; what is not named stays."""

    name: Name = Field(default_factory=unchanged)
    enabled: Enabled = Field(default_factory=unchanged)


class Tenant(Recorded):
    """A customer of the platform: the root of departments, teams and keys."""

    id: str = Field(examples=["ten_06f3k2m9v5w8x1y4z7a0b3c6d9"])
    name: str = Field(examples=["Acme"])


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
