"""The one end of a request: its usage event goes into the journal, and its numbers are counted.

Rule: an exchange is settled once, before the last bytes of its answer are handed to the socket, in the
same loop turn. So an answer that a client saw whole has its true record, whatever dies next.
"""

import time
from typing import Final

from sluicegate.contracts.money import Price, cost_nano_usd, price_at
from sluicegate.contracts.usage import Attempt, Outcome, UsageSource
from sluicegate.edge.errors import Refusal
from sluicegate.edge.mirrors.targets import Target
from sluicegate.edge.phases.exchange import Exchange
from sluicegate.edge.phases.records import Ending, finished_record, shared_halves
from sluicegate.edge.phases.reserve import keep_reserved, settle_reservations
from sluicegate.edge.wire.usage import TokenUsage

_OUTCOMES: Final[dict[str, Outcome]] = {
    "budget_exceeded": "budget_exceeded",
    "rate_limit_exceeded": "rate_limited",
    "concurrency_limit_exceeded": "rate_limited",
}
_AUTHENTICATION_CODES = frozenset({"missing_key", "invalid_key", "key_expired", "key_revoked"})


def settle(
    exchange: Exchange,
    *,
    outcome: Outcome,
    status: int,
    error_code: str | None = None,
    usage: TokenUsage | None = None,
    usage_source: UsageSource = "none",
) -> int | None:
    """End the exchange; return its cost in nano-USD, or None where no price is known."""
    if exchange.is_settled:
        return None
    exchange.is_settled = True
    exchange.state = "ended"
    # The two refer to each other, and what refers in circles waits for the collector.
    exchange.relay = None
    exchange.edge.open_exchanges.discard(exchange)
    exchange.edge.metrics.in_flight -= 1
    try:
        return _book(exchange, outcome, status, error_code, usage, usage_source)
    except Exception:
        # There is no second end that could give back the places: they would be taken as long as the process lives.
        keep_reserved(exchange)
        exchange.edge.release_body(exchange)
        raise


def _book(
    exchange: Exchange,
    outcome: Outcome,
    status: int,
    error_code: str | None,
    usage: TokenUsage | None,
    usage_source: UsageSource,
) -> int | None:
    edge = exchange.edge
    metrics = edge.metrics
    duration_us = (time.monotonic_ns() - exchange.started_ns) // 1000
    endpoint = exchange.endpoint.name
    metrics.count_request(endpoint, status, outcome, duration_us)
    principal = exchange.principal
    if principal is None:
        edge.release_body(exchange)
        return None
    ending = Ending()
    ending.request_id = exchange.request_id
    ending.started_at_us = exchange.started_at_us
    ending.status = status
    ending.outcome = outcome
    ending.error_code = error_code
    ending.duration_us = duration_us
    ending.upstream_request_id = exchange.upstream_request_id
    ending.end_user = exchange.end_user
    ending.traceparent = exchange.head.traceparent
    chat, target = exchange.chat, exchange.target
    if chat is not None:
        ending.streamed = chat.stream is True
    price, halves = exchange.price, exchange.shared_halves
    if halves is None or target is not exchange.targets[0]:
        price = price_at(target.prices, exchange.started_at_us) if target is not None else None
        halves = shared_halves(principal, endpoint, None if chat is None else chat.model, target, price, edge.edge_id)
    if target is not None:
        _say_where(exchange, target, ending)
    cost: int | None = 0
    if usage is not None:
        cost = _cost(price, usage)
        ending.input_tokens = usage.input
        ending.cached_input_tokens = usage.cached_input
        ending.cache_write_5m_tokens = usage.cache_write_5m
        ending.cache_write_1h_tokens = usage.cache_write_1h
        ending.output_tokens = usage.output
        ending.reasoning_tokens = usage.reasoning
        ending.usage_source = usage_source
        metrics.count_tokens(usage)
    if cost is not None:
        ending.cost_nano_usd = cost
        ending.cost_source = "priced"
    edge.journal.finished(exchange.request_id, principal.tenant, finished_record(ending, halves))
    if exchange.reservation is not None or exchange.target_reservation is not None:
        settle_reservations(exchange, usage, cost or 0)
    edge.release_body(exchange)
    return cost


def _say_where(exchange: Exchange, target: Target, ending: Ending) -> None:
    """Fill in the attempts and the times of an exchange that went to a provider, or found all of them full."""
    if target is not exchange.targets[0]:
        ending.fallbacks = exchange.targets.index(target)
    ending.provider_us = provider_us = exchange.provider_ns // 1000
    ending.overhead_us = overhead_us = max(0, ending.duration_us - provider_us)
    if exchange.first_token_ns:
        ending.first_token_us = (exchange.first_token_ns - exchange.started_ns) // 1000
    exchange.edge.metrics.count_times(overhead_us, provider_us, ending.first_token_us)
    attempts = exchange.attempts
    if len(attempts) > 1:
        began_ns = exchange.started_ns
        ending.attempts = tuple(
            Attempt(
                provider=provider,
                status=status,
                started_us=(start_ns - began_ns) // 1000,
                first_byte_us=(first_ns - began_ns) // 1000 if first_ns else None,
                end_us=(end_ns - began_ns) // 1000,
            )
            for provider, status, start_ns, first_ns, end_ns in attempts
        )


def settle_refused(exchange: Exchange, refusal: Refusal) -> None:
    """End an exchange that was refused by the gateway, or whose providers all failed."""
    if exchange.principal is None and refusal.code in _AUTHENTICATION_CODES:
        exchange.edge.metrics.count_auth_failure(refusal.code)
        exchange.edge.refused_keys.count(refusal.code, exchange.client.address)
    outcome: Outcome = _OUTCOMES.get(refusal.code) or ("provider_error" if exchange.attempts else "rejected")
    settle(exchange, outcome=outcome, status=refusal.status, error_code=refusal.code)


def estimated_usage(exchange: Exchange, output_tokens: int) -> TokenUsage:
    """Return a usage that nobody reported: input by the request's bytes."""
    usage = TokenUsage()
    usage.input = exchange.input_estimate
    usage.output = output_tokens
    return usage


def _cost(price: Price | None, tokens: TokenUsage) -> int | None:
    if price is None:
        return None
    return cost_nano_usd(
        price,
        input_tokens=tokens.input,
        output_tokens=tokens.output,
        cached_input_tokens=tokens.cached_input,
        cache_write_5m_tokens=tokens.cache_write_5m,
        cache_write_1h_tokens=tokens.cache_write_1h,
        reasoning_tokens=tokens.reasoning,
    )
