"""Bodies of the teams' endpoints."""

from pydantic import Field

from sluicegate.admin.changes.changes import Propagation
from sluicegate.admin.fields import Answer, Enabled, Name, Recorded, RecordId, Request, unchanged
from sluicegate.admin.limits import NO_LIMITS, Limits, WantedLimits
from sluicegate.admin.listing import ListQuery


class NewTeam(Request):
    """A team to be made."""

    tenant: RecordId = Field(description="The tenant's id.")
    department: RecordId | None = Field(default=None, description="A department of that tenant.")
    name: Name = Field(examples=["Search"])
    enabled: Enabled = True
    limits: WantedLimits = NO_LIMITS


class TeamPatch(Request):
    """What to change; what is not named stays."""

    department: RecordId | None = Field(default_factory=unchanged, description="Null: of no department.")
    name: Name = Field(default_factory=unchanged)
    enabled: Enabled = Field(default_factory=unchanged)
    limits: WantedLimits = Field(default_factory=unchanged)


class Team(Recorded):
    """The owner of keys."""

    id: str = Field(examples=["tea_06f3k2m9v5w8x1y4z7a0b3c6d9"])
    tenant: str
    department: str | None
    name: str = Field(examples=["Search"])
    limits: Limits


class TeamChanged(Propagation, Team):
    """A team after a change."""


class TeamPage(Answer):
    """A page of teams, oldest first."""

    data: list[Team]
    next: str | None = Field(description="The `cursor` of the next page; null on the last.")


class TeamQuery(ListQuery):
    """Which teams."""

    id_prefix = "tea"

    tenant: RecordId | None = Field(default=None, description="Only those of this tenant.")
    department: RecordId | None = Field(default=None, description="Only those of this department.")
    name: str | None = Field(default=None, description="Only those of exactly this name.")
