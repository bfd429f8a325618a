"""Bodies of the deliveries' endpoints."""

from pydantic import Field

from sluicegate.admin.deliveries.repository import State
from sluicegate.admin.fields import Answer, RecordId, Time
from sluicegate.admin.listing import ListQuery


class Attempt(Answer):
    """One attempt at a delivery."""

    number: int
    started_at: Time
    ended_at: Time | None = Field(description="Null: under way, or its process was killed.")
    status: int | None = Field(description="What the receiver answered.")
    error: str | None


class Delivery(Answer):
    """A message to one webhook."""

    id: str = Field(examples=["dlv_06f3k2m9v5w8x1y4z7a0b3c6d9"])
    alert: str | None = Field(description="Null: a test message.")
    webhook: str = Field(description="The webhook's id; it may be deleted since.")
    tenant: str | None
    message_id: str = Field(description="What the receiver tells repeats by.")
    state: State = Field(description="dead: not delivered and not tried any more; it may be replayed.")
    attempt_count: int
    next_attempt_at: Time | None = Field(description="Null: there is none to come.")
    last_status: int | None
    last_error: str | None
    command: str | None = Field(description="The last command that began it anew.")
    created_at: Time
    ended_at: Time | None


class WholeDelivery(Delivery):
    """A delivery with its attempts."""

    attempts: list[Attempt] = Field(description="Oldest first.")


class DeliveryPage(Answer):
    """A page of deliveries, newest first."""

    data: list[Delivery]
    next: str | None = Field(description="The `cursor` of the next page; null on the last.")


class DeliveryQuery(ListQuery):
    """Which deliveries."""

    id_prefix = "dlv"

    state: State | None = Field(default=None, description="Only those in this state.")
    webhook: RecordId | None = Field(default=None, description="Only those to this webhook.")
    alert: RecordId | None = Field(default=None, description="Only those of this alert.")
    tenant: RecordId | None = Field(default=None, description="Only those of this tenant.")
    command: RecordId | None = Field(default=None, description="Only the one that this command last began.")
