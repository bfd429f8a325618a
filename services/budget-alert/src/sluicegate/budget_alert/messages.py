"""What a webhook says, in each format: plain JSON, and the `{"text": …}` of Slack-style incoming webhooks. Pure."""

import datetime as dt
from typing import Any, Literal

import msgspec

from sluicegate.contracts.money import NANO_USD_PER_USD

Format = Literal["json", "slack"]


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """A stored threshold, as far as a receiver is told."""

    event_id: str
    tenant: str | None
    budget: str
    budget_name: str
    scope: str
    scope_id: str
    period_start: dt.datetime
    period_end: dt.datetime
    threshold_percent: int
    limit_nano_usd: int
    spent_nano_usd: int
    is_soft: bool
    reached_at: dt.datetime


class Test(msgspec.Struct, frozen=True, kw_only=True):
    """What the test button sends."""

    endpoint: str
    endpoint_name: str
    at: dt.datetime


def body(form: Format, subject: Alert | Test) -> bytes:
    """Return the body: always the same bytes for the same subject, so that a repeat is one."""
    if form == "slack":
        text = _alert_text(subject) if isinstance(subject, Alert) else _test_text(subject)
        return msgspec.json.encode({"text": text})
    return msgspec.json.encode(_alert_object(subject) if isinstance(subject, Alert) else _test_object(subject))


def usd(nano_usd: int) -> str:
    """Return an amount as a decimal number of USD, exact, with two digits or as many more as it takes."""
    whole, part = divmod(nano_usd, NANO_USD_PER_USD)
    digits = f"{part:09d}".rstrip("0").ljust(2, "0")
    return f"{whole}.{digits}"


def _alert_object(alert: Alert) -> dict[str, Any]:
    return {
        "type": "budget.threshold_reached",
        "timestamp": _time(alert.reached_at),
        "data": {
            "event_id": alert.event_id,
            "tenant": alert.tenant,
            "budget": alert.budget,
            "budget_name": alert.budget_name,
            "scope": alert.scope,
            "scope_id": alert.scope_id,
            "period_start": _time(alert.period_start),
            "period_end": _time(alert.period_end),
            "threshold_percent": alert.threshold_percent,
            "limit_usd": usd(alert.limit_nano_usd),
            "spent_usd": usd(alert.spent_nano_usd),
            "is_soft": alert.is_soft,
        },
    }


def _test_object(test: Test) -> dict[str, Any]:
    return {
        "type": "endpoint.test",
        "timestamp": _time(test.at),
        "data": {"endpoint": test.endpoint, "endpoint_name": test.endpoint_name},
    }


def _alert_text(alert: Alert) -> str:
    share = f"{usd(alert.spent_nano_usd)} of {usd(alert.limit_nano_usd)} USD"
    return (
        f"*Budget {_escaped(alert.budget_name)}* of {alert.scope} `{_escaped(alert.scope_id)}` {_state(alert)}: "
        f"{share} in the period from {_minute(alert.period_start)} to {_minute(alert.period_end)} UTC."
    )


def _state(alert: Alert) -> str:
    if alert.threshold_percent < 100:
        return f"has reached {alert.threshold_percent} %"
    if alert.is_soft:
        return f"has reached {alert.threshold_percent} % (requests are still served)"
    return f"has reached {alert.threshold_percent} % (requests are refused)"


def _test_text(test: Test) -> str:
    return f"Test message to the endpoint *{_escaped(test.endpoint_name)}*: alerts will arrive here."


def _escaped(text: str) -> str:
    """As Slack wants its three control characters; others have no way to break out of a JSON string."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\n", " ")


def _time(at: dt.datetime) -> str:
    return at.astimezone(dt.UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _minute(at: dt.datetime) -> str:
    return at.astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M")
