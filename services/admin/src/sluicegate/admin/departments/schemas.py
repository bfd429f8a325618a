"""Bodies of the departments' endpoints."""

from pydantic import Field

from sluicegate.admin.changes.changes import Propagation
from sluicegate.admin.fields import Answer, Enabled, Name, Recorded, RecordId, Request, unchanged
from sluicegate.admin.limits import NO_LIMITS, Limits, WantedLimits
from sluicegate.admin.listing import ListQuery


class NewDepartment(Request):
    """A department to be made."""

    tenant: RecordId = Field(description="The tenant's id.")
    name: Name = Field(examples=["Research"])
    enabled: Enabled = True
    limits: WantedLimits = NO_LIMITS


class DepartmentPatch(Request):
    """What to change; what is not named stays."""

    name: Name = Field(default_factory=unchanged)
    enabled: Enabled = Field(default_factory=unchanged)
    limits: WantedLimits = Field(default_factory=unchanged)


class Department(Recorded):
    """A part of a tenant that groups teams."""

    id: str = Field(examples=["dep_06f3k2m9v5w8x1y4z7a0b3c6d9"])
    tenant: str
    name: str = Field(examples=["Research"])
    limits: Limits


class DepartmentChanged(Propagation, Department):
    """A department after a change."""


class DepartmentPage(Answer):
    """A page of departments, oldest first."""

    data: list[Department]
    next: str | None = Field(description="The `cursor` of the next page; null on the last.")


class DepartmentQuery(ListQuery):
    """Which departments."""

    id_prefix = "dep"

    tenant: RecordId | None = Field(default=None, description="Only those of this tenant.")
    name: str | None = Field(default=None, description="Only those of exactly this name.")
