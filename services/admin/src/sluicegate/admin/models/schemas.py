"""Bodies of the models' endpoints."""

from datetime import UTC, datetime
from typing import Annotated, Final

from pydantic import AfterValidator, Field, model_validator

from sluicegate.admin.changes.changes import Propagation
from sluicegate.admin.fields import Answer, Enabled, ExactName, Recorded, RecordId, Request, Time, unchanged
from sluicegate.admin.limits import NO_LIMITS, Limits, WantedLimits
from sluicegate.admin.listing import ListQuery
from sluicegate.admin.models.prices import AMOUNTS, PriceRow, price_nano_usd
from sluicegate.admin.money import USD_PATTERN, usd

ALWAYS: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_TOKENS: Final = 2**31 - 1


def _exact(text: str) -> str:
    price_nano_usd(text)
    return text


Usd = Annotated[
    str,
    Field(
        json_schema_extra={"pattern": USD_PATTERN},  # the validator says in words what is wrong
        description="Decimal USD, up to 9 digits behind the point.",
        examples=["0.15"],
    ),
    AfterValidator(_exact),
]


class PriceAmounts(Answer):
    """What a million tokens cost, in USD."""

    input_usd_per_million: Usd
    output_usd_per_million: Usd
    cached_input_usd_per_million: Usd | None = Field(default=None, description="Null: as input.")
    cache_write_5m_usd_per_million: Usd | None = Field(default=None, description="Null: as input.")
    cache_write_1h_usd_per_million: Usd | None = Field(default=None, description="Null: as input.")
    reasoning_usd_per_million: Usd | None = Field(default=None, description="Null: as output.")


class NewPrice(PriceAmounts, Request):
    """A price, in force from `valid_from` until that of the next one."""

    valid_from: Time = Field(default=ALWAYS, description="Left out: always, until a later price begins.")

    def row(self) -> PriceRow:
        """Return it in nano-USD."""
        amounts = {name: getattr(self, f"{name}_usd_per_million") for name in AMOUNTS}
        return PriceRow(
            version=0,
            valid_from=self.valid_from,
            **{name: price_nano_usd(text) for name, text in amounts.items() if text is not None},
        )


class Price(PriceAmounts):
    """A price. Usage records name it by its model and version."""

    version: int
    valid_from: Time

    @model_validator(mode="before")
    @classmethod
    def _from_row(cls, value: object) -> object:
        if not isinstance(value, PriceRow):
            return value
        amounts = {name: getattr(value, name) for name in AMOUNTS}
        shown = {f"{name}_usd_per_million": usd(amount) for name, amount in amounts.items() if amount is not None}
        return shown | {"version": value.version, "valid_from": value.valid_from}


def _begin_apart(prices: list[NewPrice]) -> list[NewPrice]:
    if len({price.valid_from for price in prices}) < len(prices):
        raise ValueError("two prices begin at the same time")
    return prices


NewPrices = Annotated[
    list[NewPrice],
    Field(max_length=100, description="In any order. Without a price for its time, a request's cost is unknown."),
    AfterValidator(_begin_apart),
]
ModelType = Annotated[str, Field(min_length=1, max_length=32, pattern=r"^[a-z][a-z0-9_]*$", examples=["chat"])]
Capabilities = Annotated[list[ExactName], Field(max_length=64, examples=[["tools", "vision"]])]
Tokens = Annotated[int, Field(ge=1, le=_MAX_TOKENS)]
OwnedBy = Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$", examples=["openai"])]
UpstreamName = Annotated[ExactName, Field(description="The name the provider knows it by.", examples=["gpt-4o-mini"])]


class NewModel(Request):
    """A model to be made."""

    provider: RecordId = Field(description="The provider's id.")
    name: UpstreamName
    model_type: ModelType = "chat"
    capabilities: Capabilities = Field(default=[])
    context_tokens: Tokens | None = None
    max_output_tokens: Tokens | None = None
    owned_by: OwnedBy = ""
    prices: NewPrices = Field(default=[])
    enabled: Enabled = True
    limits: WantedLimits = NO_LIMITS


class ModelPatch(Request):
    """What to change; what is not named stays."""

    name: UpstreamName = Field(default_factory=unchanged)
    model_type: ModelType = Field(default_factory=unchanged)
    capabilities: Capabilities = Field(default_factory=unchanged)
    context_tokens: Tokens | None = Field(default_factory=unchanged)
    max_output_tokens: Tokens | None = Field(default_factory=unchanged)
    owned_by: OwnedBy = Field(default_factory=unchanged)
    prices: NewPrices = Field(default_factory=unchanged)
    enabled: Enabled = Field(default_factory=unchanged)
    limits: WantedLimits = Field(default_factory=unchanged)


class Model(Recorded):
    """A model of a provider."""

    id: str = Field(examples=["mod_06f3k2m9v5w8x1y4z7a0b3c6d9"])
    provider: str
    name: str = Field(examples=["gpt-4o-mini"])
    model_type: str
    capabilities: list[str]
    context_tokens: int | None
    max_output_tokens: int | None
    owned_by: str
    prices: list[Price] = Field(description="Oldest first.")
    limits: Limits


class ModelChanged(Propagation, Model):
    """A model after a change."""


class ModelPage(Answer):
    """A page of models, oldest first."""

    data: list[Model]
    next: str | None = Field(description="The `cursor` of the next page; null on the last.")


class ModelQuery(ListQuery):
    """Which models."""

    id_prefix = "mod"

    provider: RecordId | None = Field(default=None, description="Only those of this provider.")
    name: str | None = Field(default=None, description="Only those of exactly this name.")
