"""Bodies of the budgets' endpoints: USD as decimal strings and weekdays by name, as people write them."""

from itertools import pairwise
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import AfterValidator, Field, model_validator

from sluicegate.admin.budgets.repository import BudgetRow
from sluicegate.admin.budgets.zones import known_zone
from sluicegate.admin.changes.changes import Propagation
from sluicegate.admin.fields import Answer, Name, Recorded, RecordId, Request, Time, changes_of, unchanged
from sluicegate.admin.listing import ListQuery
from sluicegate.admin.money import USD_PATTERN, nano_usd, usd
from sluicegate.contracts import catalogue
from sluicegate.contracts.catalogue import MAX_LIMIT_NANO_USD

Weekday = Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
_WEEKDAYS: Final = get_args(Weekday)
_MAX_THRESHOLD_PERCENT: Final = 1_000


def _limit(text: str) -> str:
    if nano_usd(text) > MAX_LIMIT_NANO_USD:
        raise ValueError(f"must not be above {usd(MAX_LIMIT_NANO_USD)} USD")
    return text


def _ascending(thresholds: list[int]) -> list[int]:
    if any(upper <= lower for lower, upper in pairwise(thresholds)):
        raise ValueError("must be in ascending order, each once")
    return thresholds


LimitUsd = Annotated[
    str,
    Field(
        json_schema_extra={"pattern": USD_PATTERN},  # the validator says in words what is wrong
        description="Decimal USD per period, up to 9 digits behind the point. 0 lets nothing pass.",
        examples=["12.50"],
    ),
    AfterValidator(_limit),
]
Scope = Annotated[catalogue.Scope, Field(description="What kind of record may spend it.")]
ScopeId = Annotated[RecordId, Field(description="That record's id.")]
Period = Annotated[catalogue.Period, Field(description="A calendar period. Hours begin with the hour of UTC.")]
FirstWeekday = Annotated[Weekday, Field(description="Weeks begin with it; other periods do not ask.")]
TimeZone = Annotated[
    str,
    Field(
        min_length=1,
        max_length=64,
        description="IANA name; days and longer periods begin at midnight there.",
        examples=["Asia/Tokyo"],
    ),
    AfterValidator(known_zone),
]
Thresholds = Annotated[
    list[Annotated[int, Field(ge=1, le=_MAX_THRESHOLD_PERCENT)]],
    Field(max_length=20, description="Per cent of the limit that alert, each once a period. Empty: none do."),
    AfterValidator(_ascending),
]
Soft = Annotated[bool, Field(description="It never refuses: it warns and alerts when it is exceeded.")]
Enabled = Annotated[
    bool, Field(description="False: it refuses nothing and alerts nobody; enabled again, it counts its whole period.")
]


class NewBudget(Request):
    """A budget to be made. A scope may have any number of them; all apply."""

    name: Name = Field(examples=["Research, monthly"])
    scope: Scope
    scope_id: ScopeId
    limit_usd: LimitUsd
    period: Period
    first_weekday: FirstWeekday = "monday"
    time_zone: TimeZone = "UTC"
    thresholds_percent: Thresholds = Field(default=[50, 80, 100])
    soft: Soft = False
    enabled: Enabled = True


class BudgetPatch(Request):
    """What to change; what is not named stays."""

    name: Name = Field(default_factory=unchanged)
    scope: Scope = Field(default_factory=unchanged)
    scope_id: ScopeId = Field(default_factory=unchanged)
    limit_usd: LimitUsd = Field(default_factory=unchanged)
    period: Period = Field(default_factory=unchanged)
    first_weekday: FirstWeekday = Field(default_factory=unchanged)
    time_zone: TimeZone = Field(default_factory=unchanged)
    thresholds_percent: Thresholds = Field(default_factory=unchanged)
    soft: Soft = Field(default_factory=unchanged)
    enabled: Enabled = Field(default_factory=unchanged)


def columns(body: NewBudget | BudgetPatch) -> dict[str, Any]:
    """Return what a body states, as a row holds it."""
    named = dict(body) if isinstance(body, NewBudget) else changes_of(body)
    if "limit_usd" in named:
        named["limit_nano_usd"] = nano_usd(named.pop("limit_usd"))
    if "first_weekday" in named:
        named["first_weekday"] = _WEEKDAYS.index(named["first_weekday"])
    if "thresholds_percent" in named:
        named["thresholds_percent"] = tuple(named["thresholds_percent"])
    if "soft" in named:
        named["is_soft"] = named.pop("soft")
    return named


class Budget(Recorded):
    """What a scope may spend in each calendar period."""

    id: str = Field(examples=["bud_06f3k2m9v5w8x1y4z7a0b3c6d9"])
    tenant: str | None = Field(description="The scope's tenant. Null: the scope belongs to the platform.")
    name: str = Field(examples=["Research, monthly"])
    scope: Scope
    scope_id: str
    limit_usd: str = Field(examples=["12.5"])
    period: Period
    first_weekday: FirstWeekday
    time_zone: str = Field(examples=["Asia/Tokyo"])
    thresholds_percent: list[int]
    soft: Soft
    enabled: Enabled
    counts_since: Time = Field(
        description="When it last began to count: when it was made or enabled, or its scope, period, zone or weekday "
        "changed. The period of that moment counts from its own beginning."
    )

    @model_validator(mode="before")
    @classmethod
    def _from_row(cls, value: object) -> object:
        if not isinstance(value, BudgetRow):
            return value
        shown = {name: getattr(value, name) for name in BudgetRow.__slots__}
        return shown | {
            "limit_usd": usd(value.limit_nano_usd),
            "first_weekday": _WEEKDAYS[value.first_weekday],
            "thresholds_percent": list(value.thresholds_percent),
            "soft": value.is_soft,
        }


class BudgetChanged(Propagation, Budget):
    """A budget after a change."""


class BudgetPage(Answer):
    """A page of budgets, oldest first."""

    data: list[Budget]
    next: str | None = Field(description="The `cursor` of the next page; null on the last.")


class BudgetQuery(ListQuery):
    """Which budgets."""

    id_prefix = "bud"

    tenant: RecordId | None = Field(default=None, description="Only those of this tenant.")
    scope: catalogue.Scope | None = Field(default=None, description="Only those of this kind of scope.")
    scope_id: RecordId | None = Field(default=None, description="Only those of this record.")
    name: str | None = Field(default=None, description="Only those of exactly this name.")
