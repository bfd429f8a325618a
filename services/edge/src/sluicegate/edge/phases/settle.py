"""The one end of a request: its usage event goes into the journal, and its numbers are counted.

Rule: an exchange is settled once, before the last bytes of its answer are handed to the socket, in the
same loop turn. So an answer that a client saw whole has its true record, whatever dies next.
"""

import hashlib
import time

import msgspec

from sluicegate.contracts.money import Price, cost_nano_usd, price_at
from sluicegate.contracts.usage import Attempt, Outcome, UsageRecorded, UsageSource
from sluicegate.edge.errors import Refusal
from sluicegate.edge.phases.exchange import Exchange
from sluicegate.edge.wire.usage import TokenUsage

_MAX_TRACEPARENT = 55
_MAX_TEXT_BYTES = 256
_AUTHENTICATION_CODES = frozenset({"missing_key", "invalid_key", "key_expired", "key_revoked"})
_encode = msgspec.json.Encoder().encode
_NOTHING = TokenUsage()


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
    edge = exchange.edge
    metrics = edge.metrics
    edge.open_exchanges.discard(exchange)
    metrics.in_flight -= 1
    duration_us = (time.monotonic_ns() - exchange.started_ns) // 1000
    endpoint = exchange.endpoint.name
    metrics.count_request(endpoint, status, outcome)
    metrics.request_duration.observe(duration_us)
    principal = exchange.principal
    if principal is None:
        edge.release_body(exchange)
        return None
    chat, target = exchange.chat, exchange.target
    tokens = usage or _NOTHING
    price = price_at(target.prices, exchange.started_at_us) if target is not None else None
    cost = 0 if usage is None else _cost(price, tokens)
    provider_us = exchange.provider_ns // 1000 if target is not None else None
    overhead_us = None if provider_us is None else max(0, duration_us - provider_us)
    first_token_us = (exchange.first_token_ns - exchange.started_ns) // 1000 if exchange.first_token_ns else None
    attempts = exchange.attempts
    event = UsageRecorded(
        request_id=exchange.request_id,
        started_at_us=exchange.started_at_us,
        tenant=principal.tenant,
        department=principal.department,
        team=principal.team,
        key=principal.key.id,
        endpoint=endpoint,
        status=status,
        outcome=outcome,
        requested_model=clean_text(chat.model) if chat is not None and chat.model else None,
        provider=None if target is None else target.provider_id,
        upstream_model=None if target is None else target.model_name,
        upstream_request_id=exchange.upstream_request_id,
        streamed=chat is not None and chat.stream is True,
        error_code=error_code,
        attempts=_attempts(attempts) if len(attempts) > 1 else (),
        fallbacks=exchange.targets.index(target) if target is not None and len(attempts) > 1 else 0,
        input_tokens=tokens.input,
        cached_input_tokens=tokens.cached_input,
        cache_write_5m_tokens=tokens.cache_write_5m,
        cache_write_1h_tokens=tokens.cache_write_1h,
        output_tokens=tokens.output,
        reasoning_tokens=tokens.reasoning,
        usage_source=usage_source,
        cost_nano_usd=cost,
        cost_source="unpriced" if cost is None else "priced",
        price_version=None if price is None else price.version,
        duration_us=duration_us,
        first_token_us=first_token_us,
        provider_us=provider_us,
        overhead_us=overhead_us,
        end_user=end_user_of(exchange),
        edge=edge.edge_id,
        traceparent=_traceparent(exchange),
    )
    edge.journal.finished(exchange.request_id, principal.tenant, _encode(event))
    edge.release_body(exchange)
    if usage is not None:
        metrics.count_tokens(
            input=tokens.input, cached_input=tokens.cached_input, output=tokens.output, reasoning=tokens.reasoning
        )
    if overhead_us is not None and provider_us is not None:
        metrics.gateway_overhead.observe(overhead_us)
        metrics.provider_time.observe(provider_us)
        if first_token_us is not None:
            metrics.time_to_first_token.observe(first_token_us)
    return cost


def settle_refused(exchange: Exchange, refusal: Refusal) -> None:
    """End an exchange that was refused by the gateway, or whose providers all failed."""
    if exchange.principal is None and refusal.code in _AUTHENTICATION_CODES:
        exchange.edge.metrics.count_auth_failure(refusal.code)
        exchange.edge.refused_keys.count(refusal.code, exchange.client.address)
    outcome: Outcome = "provider_error" if exchange.attempts else "rejected"
    settle(exchange, outcome=outcome, status=refusal.status, error_code=refusal.code)


def estimated_usage(exchange: Exchange, output_tokens: int) -> TokenUsage:
    """Return a usage that nobody reported: input by the request's bytes."""
    usage = TokenUsage()
    usage.input = exchange.input_estimate
    usage.output = output_tokens
    return usage


def clean_text(text: str) -> str:
    """Return a client's string as it may be stored: without NUL and lone surrogates, at most 256 bytes."""
    if text.isascii() and len(text) <= _MAX_TEXT_BYTES and "\0" not in text:
        return text
    return text.replace("\0", "").encode("utf-8", "ignore")[:_MAX_TEXT_BYTES].decode("utf-8", "ignore")


def end_user_of(exchange: Exchange) -> str | None:
    """Return a pseudonym of the request's `user`: the same within a tenant, meaningless outside it."""
    chat, principal = exchange.chat, exchange.principal
    if chat is None or principal is None or not chat.user:
        return None
    text = chat.user.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, key=principal.tenant.encode()[:64], digest_size=12).hexdigest()


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


def _attempts(attempts: list[tuple[str, int | None, int, int | None, int]]) -> tuple[Attempt, ...]:
    return tuple(
        Attempt(provider=provider, status=status, started_us=started, first_byte_us=first, end_us=end)
        for provider, status, started, first, end in attempts
    )


def _traceparent(exchange: Exchange) -> str | None:
    value = exchange.head.get(b"traceparent")
    if value is None or len(value) > _MAX_TRACEPARENT or not value.isascii():
        return None
    return value.decode("ascii")
