"""Made-up usage events, as an edge would record them: for tests and benchmarks of what comes after it."""

import random
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from sluicegate.contracts.events import encode_event, join_events
from sluicegate.contracts.ids import uuid7_text
from sluicegate.contracts.subjects import REQUEST_COMPLETED
from sluicegate.contracts.usage import Outcome, UsageRecorded

TENANTS: Final = 5
TEAMS: Final = 20
KEYS: Final = 200
MODELS: Final = 12
PROVIDERS: Final = 3
_MODEL_WEIGHTS: Final = [1 / rank for rank in range(1, MODELS + 1)]
_KEY_WEIGHTS: Final = [1 / rank for rank in range(1, KEYS + 1)]


def usage_event(**changes: Any) -> UsageRecorded:
    """Return one plain successful record, with some fields changed."""
    now_us = changes.get("started_at_us", time.time_ns() // 1000)
    fields: dict[str, Any] = {
        "request_id": uuid7_text(now_us),
        "started_at_us": now_us,
        "tenant": "ten_0",
        "team": "tea_0",
        "key": "key_0",
        "endpoint": "chat.completions",
        "status": 200,
        "outcome": "success",
        "requested_model": "demo",
        "provider": "prv_0",
        "upstream_model": "demo-1",
        "input_tokens": 100,
        "output_tokens": 20,
        "usage_source": "provider",
        "cost_nano_usd": 12_345,
        "cost_source": "priced",
        "price_version": 1,
        "duration_us": 500_000,
        "first_token_us": 120_000,
        "provider_us": 499_000,
        "overhead_us": 1_000,
        "edge": "edge-0",
    }
    return UsageRecorded(**(fields | changes))


def population(
    count: int, *, seed: int = 1, start_us: int | None = None, span_us: int = 600_000_000, detail_share: float = 0.02
) -> Iterator[UsageRecorded]:
    """Yield `count` records in order of time: a few keys do most, each mostly with one model, one in fifty fails."""
    chance = random.Random(seed)
    start_us = time.time_ns() // 1000 - span_us if start_us is None else start_us
    keys = chance.choices(range(KEYS), _KEY_WEIGHTS, k=count)
    favourites = chance.choices(range(MODELS), _MODEL_WEIGHTS, k=KEYS)
    for number, key in enumerate(keys):
        model = favourites[key] if chance.random() < 0.9 else (favourites[key] + 1) % MODELS
        outcome: Outcome = "success" if chance.random() > 0.02 else chance.choice(("provider_error", "rejected"))
        is_streamed = key % 10 < 6
        duration_us = int(chance.lognormvariate(13.5, 0.8))
        overhead_us = int(chance.lognormvariate(5.5, 0.4))
        has_detail = chance.random() < detail_share
        input_tokens, output_tokens = chance.randrange(20, 8_000), chance.randrange(1, 1_500)
        team = key % TEAMS
        yield usage_event(
            started_at_us=start_us + span_us * number // count,
            tenant=f"ten_{team % TENANTS:026}",
            department=f"dep_{team % 10:026}" if team % 2 else None,
            team=f"tea_{team:026}",
            key=f"key_{key:026}",
            status=200 if outcome == "success" else 502 if outcome == "provider_error" else 404,
            outcome=outcome,
            error_code=None if outcome == "success" else "model_not_found" if outcome == "rejected" else outcome,
            requested_model=f"alias-{model}",
            provider=None if outcome == "rejected" else f"prv_{model % PROVIDERS:026}",
            upstream_model=None if outcome == "rejected" else f"model-{model}",
            upstream_request_id=f"req_{chance.getrandbits(128):032x}" if outcome == "success" else None,
            streamed=is_streamed,
            input_tokens=input_tokens,
            cached_input_tokens=input_tokens // 2 if chance.random() < 0.2 else 0,
            output_tokens=output_tokens,
            reasoning_tokens=output_tokens // 3 if chance.random() < 0.1 else 0,
            cost_nano_usd=None if outcome == "rejected" else input_tokens * 150 + output_tokens * 600,
            cost_source="unpriced" if outcome == "rejected" else "priced",
            duration_us=duration_us,
            first_token_us=duration_us // 4 if is_streamed else None,
            provider_us=duration_us - overhead_us,
            overhead_us=overhead_us,
            end_user=f"user-{chance.getrandbits(64):016x}" if has_detail else None,
            tags={"app": "search"} if has_detail else {},
            edge=f"00000000-0000-4000-8000-{chance.randrange(4):012}",
        )


def messages(events: Sequence[UsageRecorded], per_message: int = 100) -> Iterator[tuple[str, bytes]]:
    """Yield (subject, body) for messages of `per_message` events, each of one tenant."""
    by_tenant: dict[str, list[bytes]] = {}
    for event in events:
        batch = by_tenant.setdefault(event.tenant, [])
        batch.append(encode_event(event))
        if len(batch) == per_message:
            yield f"{REQUEST_COMPLETED}.{event.tenant}", join_events(batch)
            batch.clear()
    for tenant, batch in by_tenant.items():
        if batch:
            yield f"{REQUEST_COMPLETED}.{tenant}", join_events(batch)
