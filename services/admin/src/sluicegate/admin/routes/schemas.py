"""Bodies of the routes' endpoints."""

from typing import Annotated

from pydantic import AfterValidator, Field

from sluicegate.admin.changes.changes import Propagation
from sluicegate.admin.fields import Answer, Enabled, ExactName, Name, Recorded, RecordId, Request, unchanged
from sluicegate.admin.listing import ListQuery


def _addressable(alias: str) -> str:
    if "*" in alias:
        raise ValueError("must not hold `*`, which stands for any rest in the allowed models of a key")
    if {".", ".."} & set(alias.split("/")):
        raise ValueError("must not hold `.` or `..` between slashes: no client would ask for that path")
    return alias


class Target(Answer, Request):
    """One place a route may lead to."""

    model: RecordId = Field(description="The model's id.")


def _distinct(targets: list[Target]) -> list[Target]:
    if len({target.model for target in targets}) < len(targets):
        raise ValueError("a model is named twice")
    return targets


Alias = Annotated[
    ExactName,
    AfterValidator(_addressable),
    Field(description="What clients send as `model`.", examples=["gpt-4o-mini"]),
]
Targets = Annotated[
    list[Target],
    Field(min_length=1, max_length=32, description="Tried in this order."),
    AfterValidator(_distinct),
]


class NewRoute(Request):
    """A route to be made."""

    alias: Alias
    targets: Targets
    tenant: RecordId | None = Field(default=None, description="Only keys of this tenant see it. Null: all.")
    name: Name | None = Field(default=None, description="A label for people; the alias if left out.")
    enabled: Enabled = True


class RoutePatch(Request):
    """What to change; what is not named stays."""

    alias: Alias = Field(default_factory=unchanged)
    targets: Targets = Field(default_factory=unchanged)
    name: Name = Field(default_factory=unchanged)
    enabled: Enabled = Field(default_factory=unchanged)


class Route(Recorded):
    """What a client calls. A tenant's own route wins over one for all."""

    id: str = Field(examples=["rte_06f3k2m9v5w8x1y4z7a0b3c6d9"])
    alias: str = Field(examples=["gpt-4o-mini"])
    name: str
    tenant: str | None
    targets: list[Target]


class RouteChanged(Propagation, Route):
    """A route after a change."""


class RoutePage(Answer):
    """A page of routes, oldest first."""

    data: list[Route]
    next: str | None = Field(description="The `cursor` of the next page; null on the last.")


class RouteQuery(ListQuery):
    """Which routes."""

    id_prefix = "rte"

    tenant: RecordId | None = Field(default=None, description="Only those of this tenant.")
    alias: str | None = Field(default=None, description="Only those of exactly this alias.")
