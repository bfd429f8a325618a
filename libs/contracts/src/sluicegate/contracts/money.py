"""Prices and the one price function, used to reserve and to settle.

Money is an integer of nano-USD (10⁻⁹ USD); prices are integer nano-USD per million tokens.
"""

from typing import Final

import msgspec

NANO_USD_PER_USD: Final = 1_000_000_000
_TOKENS_PER_PRICE: Final = 1_000_000


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """What a model costs from one moment on, in nano-USD per million tokens.

    `cached_input`, `cache_write_5m` and `cache_write_1h` fall back to `input`, `reasoning` to `output`.
    """

    version: int
    valid_from_us: int
    input: int
    output: int
    cached_input: int | None = None
    cache_write_5m: int | None = None
    cache_write_1h: int | None = None
    reasoning: int | None = None


def price_at(prices: tuple[Price, ...], at_us: int) -> Price | None:
    """Return the price in force at `at_us`; `prices` are ordered by `valid_from_us`, oldest first."""
    for price in reversed(prices):
        if price.valid_from_us <= at_us:
            return price
    return None


def cost_nano_usd(
    price: Price,
    *,
    input_tokens: int,
    output_tokens: int,
    cached_input_tokens: int = 0,
    cache_write_5m_tokens: int = 0,
    cache_write_1h_tokens: int = 0,
    reasoning_tokens: int = 0,
) -> int:
    """Return the cost in nano-USD, rounded half up once.

    `input_tokens` includes cached and cache-write tokens, `output_tokens` includes reasoning
    tokens (OpenAI's meaning). A part that exceeds its whole counts as far as the whole goes.
    """
    total = input_tokens * price.input + output_tokens * price.output
    if cached_input_tokens or cache_write_5m_tokens or cache_write_1h_tokens:
        plain = input_tokens
        for tokens, rate in (
            (cached_input_tokens, price.cached_input),
            (cache_write_5m_tokens, price.cache_write_5m),
            (cache_write_1h_tokens, price.cache_write_1h),
        ):
            part = min(tokens, plain)
            plain -= part
            if rate is not None:
                total += part * (rate - price.input)
    if reasoning_tokens and price.reasoning is not None:
        total += min(reasoning_tokens, output_tokens) * (price.reasoning - price.output)
    return (total * 2 + _TOKENS_PER_PRICE) // (2 * _TOKENS_PER_PRICE)
