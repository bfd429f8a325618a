"""Bodies of the alerts' endpoints."""

from pydantic import Field, model_validator

from sluicegate.admin.alerts.repository import AlertRow
from sluicegate.admin.fields import Answer, RecordId, Time
from sluicegate.admin.listing import ListQuery
from sluicegate.admin.money import usd
from sluicegate.contracts.catalogue import Scope


class Alert(Answer):
    """A threshold that a budget has reached: one alert per budget, scope, period and threshold."""

    id: str = Field(examples=["alr_06f3k2m9v5w8x1y4z7a0b3c6d9"])
    event_id: str = Field(description="The same in the event and in what webhooks receive.")
    tenant: str | None
    budget: str = Field(description="The budget's id; it may be deleted since.")
    budget_name: str = Field(description="As it was then.")
    scope: Scope
    scope_id: str
    period_start: Time
    period_end: Time = Field(description="The first moment after the period.")
    threshold_percent: int
    limit_usd: str = Field(examples=["12.5"])
    spent_usd: str = Field(description="When it was noticed.", examples=["10.017"])
    soft: bool
    reached_at: Time
    created_at: Time

    @model_validator(mode="before")
    @classmethod
    def _from_row(cls, value: object) -> object:
        if not isinstance(value, AlertRow):
            return value
        shown = {name: getattr(value, name) for name in AlertRow.__slots__}
        money = {"limit_usd": usd(value.limit_nano_usd), "spent_usd": usd(value.spent_nano_usd)}
        return shown | money | {"soft": value.is_soft}


class AlertPage(Answer):
    """A page of alerts, newest first."""

    data: list[Alert]
    next: str | None = Field(description="The `cursor` of the next page; null on the last.")


class AlertQuery(ListQuery):
    """Which alerts."""

    id_prefix = "alr"

    tenant: RecordId | None = Field(default=None, description="Only those of this tenant.")
    budget: RecordId | None = Field(default=None, description="Only those of this budget.")
    scope: Scope | None = Field(default=None, description="Only those of this kind of scope.")
    scope_id: RecordId | None = Field(default=None, description="Only those of this record.")
