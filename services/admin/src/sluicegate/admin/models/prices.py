"""Prices in nano-USD, and how a list of them changes.

A price that was in force stays in the table for ever, because usage records name it by its version: a
changed list retires and adds, it never rewrites.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from sluicegate.admin.money import nano_usd
from sluicegate.contracts.money import NANO_USD_PER_USD

AMOUNTS: Final = ("input", "output", "cached_input", "cache_write_5m", "cache_write_1h", "reasoning")

# A dollar a token is dearer than anything sold; the bound keeps every sum far inside 64 bits.
MAX_USD_PER_MILLION: Final = 1_000_000


def price_nano_usd(text: str) -> int:
    """Return nano-USD of decimal USD per million tokens; raise ValueError for what is not exact or not sensible."""
    amount = nano_usd(text)
    if amount > MAX_USD_PER_MILLION * NANO_USD_PER_USD:
        raise ValueError(f"must not be above {MAX_USD_PER_MILLION} USD per million tokens")
    return amount


@dataclass(frozen=True, slots=True)
class PriceRow:
    """A price in nano-USD per million tokens. Version 0: not written yet."""

    version: int
    valid_from: datetime
    input: int
    output: int
    cached_input: int | None = None
    cache_write_5m: int | None = None
    cache_write_1h: int | None = None
    reasoning: int | None = None


@dataclass(frozen=True, slots=True)
class PricePlan:
    """What turns the present list into the wanted one."""

    retired: tuple[int, ...]
    added: tuple[PriceRow, ...]

    @property
    def is_empty(self) -> bool:
        return not self.retired and not self.added


def plan_prices(present: Sequence[PriceRow], wanted: Sequence[PriceRow], *, last_version: int) -> PricePlan:
    """Keep what is equal, retire what is not wanted, number what is new, oldest first."""
    versions = {replace(row, version=0): row.version for row in present}
    new = [row for row in sorted(wanted, key=lambda row: row.valid_from) if row not in versions]
    kept = {versions[row] for row in wanted if row in versions}
    return PricePlan(
        retired=tuple(row.version for row in present if row.version not in kept),
        added=tuple(replace(row, version=last_version + place) for place, row in enumerate(new, start=1)),
    )
