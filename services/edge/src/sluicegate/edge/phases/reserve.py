"""What a request may use at most, taken from all its limits or from none; and what is said if one is short.

The same price function reserves and settles (`contracts.money`), with the parameters that are really sent on.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from sluicegate.contracts.money import cost_nano_usd, price_at
from sluicegate.edge.errors import Refusal
from sluicegate.edge.mirrors.limits import Bounds, utc_text
from sluicegate.edge.mirrors.targets import Target
from sluicegate.edge.phases.exchange import Exchange
from sluicegate.edge.wire.usage import TokenUsage
from sluicegate.ledger.meters import NO_LIMIT, Meter, Reservation, Resource, Short

if TYPE_CHECKING:
    from sluicegate.edge.phases.classify import ChatRequest

# Where neither the request nor the model bounds the output: what answers mostly stay below.
DEFAULT_OUTPUT_TOKENS: Final = 1_024
_MOST_TOKENS: Final = 100_000_000
# Waiting does not open a limit of 0; who waits all the same shall not do it often.
_CLOSED_RETRY_S: Final = 60


def take(exchange: Exchange, bounds: Bounds, targets: tuple[Target, ...]) -> Reservation | None:
    """Take what the request can use at most. None: that takes a moment (`take_later`). Refusal: a limit is short."""
    if bounds.closed_resource is not None:
        raise _refusal_of_closed(bounds, bounds.closed_resource)
    ledger = exchange.edge.ledger
    tokens, cost = _needs(exchange, bounds, targets) if bounds.takes_amounts else (0, 0)
    reservation = ledger.take(bounds.meters, tokens, cost)
    if reservation is None:
        short = ledger.refused(bounds.meters, tokens, cost)
        if short is not None:
            raise _refusal_of(exchange, short, bounds, tokens)
    return reservation


async def take_later(exchange: Exchange, bounds: Bounds, targets: tuple[Target, ...]) -> Reservation:
    """Take it with the store's next answer, or as the policy says after 50 ms. Refusal: a limit is short."""
    tokens, cost = _needs(exchange, bounds, targets)
    outcome = await exchange.edge.ledger.wait(bounds.meters, tokens, cost)
    if isinstance(outcome, Short):
        raise _refusal_of(exchange, outcome, bounds, tokens)
    return outcome


def settle_reservations(exchange: Exchange, usage: TokenUsage | None, cost_nano_usd: int) -> None:
    """Book what was used; a request that went nowhere gives everything back."""
    ledger = exchange.edge.ledger
    if usage is None and not exchange.attempts:
        release(exchange)
        return
    tokens = 0 if usage is None else _weighed_tokens(exchange, usage)
    if exchange.reservation is not None:
        ledger.settle(exchange.reservation, tokens, cost_nano_usd)
    if exchange.target_reservation is not None:
        ledger.settle(exchange.target_reservation, tokens, cost_nano_usd)


def keep_reserved(exchange: Exchange) -> None:
    """Book all that was reserved: what was used is not known, for a fault of our own."""
    for reservation in (exchange.reservation, exchange.target_reservation):
        if reservation is not None:
            exchange.edge.ledger.settle(reservation, reservation.tokens, reservation.cost_nano_usd)


def release(exchange: Exchange) -> None:
    """Give everything back."""
    for reservation in (exchange.reservation, exchange.target_reservation):
        if reservation is not None:
            exchange.edge.ledger.release(reservation)


def _needs(exchange: Exchange, bounds: Bounds, targets: Iterable[Target]) -> tuple[int, int]:
    """Return tokens and nano-USD that the request can take at most, at the dearest of these targets.

    Refusal: a hard budget binds it, and a target's price is not known, so that it would pass for nothing.
    """
    chat = exchange.chat
    if chat is None or not bounds.takes_amounts:
        return 0, 0
    input_tokens = exchange.input_estimate
    most_output = most_cost = 0
    for target in targets:
        output_tokens = _output_at_most(chat, target.max_output_tokens)
        most_output = max(most_output, output_tokens)
        price = price_at(target.prices, exchange.started_at_us)
        if price is None:
            if bounds.has_hard_budget and exchange.edge.settings.unpriced_under_budget == "refuse":
                raise _refusal_of_unpriced(target)
        elif bounds.meters.budgets:
            reasoning = price.reasoning
            cost = cost_nano_usd(
                price,
                input_tokens=input_tokens,
                output_tokens=output_tokens,
                # All of it may be thought, and thought may be dearer than what is said.
                reasoning_tokens=output_tokens if reasoning is not None and reasoning > price.output else 0,
            )
            most_cost = max(most_cost, cost)
    return input_tokens + most_output, min(NO_LIMIT, most_cost)


def _output_at_most(chat: "ChatRequest", model_limit: int | None) -> int:
    limit = chat.max_completion_tokens or chat.max_tokens or DEFAULT_OUTPUT_TOKENS
    if chat.max_tokens is not None and chat.max_tokens > limit:
        limit = chat.max_tokens
    if model_limit is not None and model_limit < limit:
        limit = model_limit
    if chat.n is not None:
        limit *= chat.n
    return min(_MOST_TOKENS, limit)


def _refusal_of_unpriced(target: Target) -> Refusal:
    return Refusal(
        "model_not_allowed",
        f"{target.provider_name}/{target.model_name} has no price, and a budget binds this request: its spend could "
        "not be counted. The platform team can set a price.",
        param="model",
    )


def _weighed_tokens(exchange: Exchange, usage: TokenUsage) -> int:
    """Return the tokens that an answer takes from limits: cached input counts by its weight."""
    tokens = usage.input + usage.output
    if usage.cached_input:
        cached = min(usage.cached_input, usage.input)
        tokens -= cached * (100 - exchange.edge.settings.cached_tokens_weight_percent) // 100
    return tokens


def _refusal_of_closed(bounds: Bounds, resource: Resource) -> Refusal:
    text = f"{_sentence(bounds.closed)} {_CLOSED[resource]}."
    retry_after_s = None if resource == "budget" else _CLOSED_RETRY_S
    return Refusal(_CODES[resource], text, should_retry=False, retry_after_s=retry_after_s)


def _refusal_of(exchange: Exchange, short: Short, bounds: Bounds, tokens: int) -> Refusal:
    meter = short.meter
    name = bounds.names.get(meter, "a limit")
    if short.reason == "store_away":
        return Refusal(
            "dependency_unavailable",
            "The gateway cannot reach the limits that bind this request now. Try again.",
            retry_after_s=short.retry_after_s,
        )
    if meter.resource != "budget":
        text = f"{_sentence(name)} {_explained(meter, tokens)}"
        # What can take more than the whole limit never passes.
        should_retry = False if meter.resource == "tokens" and tokens > meter.limit else None
        return Refusal(_CODES[meter.resource], text, retry_after_s=short.retry_after_s, should_retry=should_retry)
    if short.is_final:
        exchange.edge.thresholds.on_exhausted(meter)
        text = f"{_sentence(name)} has less left until {utc_text(meter.end_us)} than this request can cost."
        if meter.spent is not None and meter.spent >= meter.limit:
            text = f"{_sentence(name)} is used up until {utc_text(meter.end_us)}."
        return Refusal("budget_exceeded", text, should_retry=False)
    text = f"What is left of {name} is held by requests that still run. Try again."
    return Refusal("budget_exceeded", text, should_retry=True, retry_after_s=short.retry_after_s)


def _explained(meter: Meter, tokens: int) -> str:
    if meter.resource == "requests":
        # A provider or a model sends none: they are sent to it.
        verb = "takes" if meter.scope in {"provider", "model"} else "may send"
        return f"{verb} {meter.limit} requests a minute."
    if meter.resource == "open":
        return f"may have {meter.limit} requests open at once. Wait for one to end."
    text = f"may use {meter.limit} tokens a minute, and this request can take {tokens}."
    return f"{text} Lower `max_tokens` or shorten it." if tokens > meter.limit else text


def _sentence(name: str) -> str:
    return name[:1].upper() + name[1:]


_CODES: Final[dict[Resource, str]] = {
    "requests": "rate_limit_exceeded",
    "tokens": "rate_limit_exceeded",
    "open": "concurrency_limit_exceeded",
    "budget": "budget_exceeded",
}
_CLOSED: Final[dict[Resource, str]] = {
    "requests": "may send no requests",
    "tokens": "may use no tokens",
    "open": "may have no requests open",
    "budget": "is 0",
}
