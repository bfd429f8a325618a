"""What a webhook says in each format."""

import datetime as dt
import json

import pytest

from sluicegate.budget_alert import messages
from sluicegate.budget_alert.messages import Alert

AT = dt.datetime(2026, 11, 1, tzinfo=dt.UTC)


def alert(**changes: object) -> Alert:
    values: dict[str, object] = {
        "event_id": "bud_1:tea_1:1793491200:80",
        "tenant": "ten_1",
        "budget": "bud_1",
        "budget_name": "research",
        "scope": "team",
        "scope_id": "tea_1",
        "period_start": AT,
        "period_end": AT + dt.timedelta(days=30),
        "threshold_percent": 80,
        "limit_nano_usd": 12_500_000_000,
        "spent_nano_usd": 10_000_000_001,
        "is_soft": False,
        "reached_at": AT + dt.timedelta(days=3, microseconds=5),
    }
    return Alert(**(values | changes))  # type: ignore[arg-type]


def test_json_body_holds_the_threshold() -> None:
    assert json.loads(messages.body("json", alert())) == {
        "type": "budget.threshold_reached",
        "timestamp": "2026-11-04T00:00:00.000005Z",
        "data": {
            "event_id": "bud_1:tea_1:1793491200:80",
            "tenant": "ten_1",
            "budget": "bud_1",
            "budget_name": "research",
            "scope": "team",
            "scope_id": "tea_1",
            "period_start": "2026-11-01T00:00:00.000000Z",
            "period_end": "2026-12-01T00:00:00.000000Z",
            "threshold_percent": 80,
            "limit_usd": "12.50",
            "spent_usd": "10.000000001",
            "is_soft": False,
        },
    }


def test_slack_body_is_one_text() -> None:
    assert json.loads(messages.body("slack", alert())) == {
        "text": "*Budget research* of team `tea_1` has reached 80 %: 10.000000001 of 12.50 USD "
        "in the period from 2026-11-01 00:00 to 2026-12-01 00:00 UTC."
    }


@pytest.mark.parametrize(("is_soft", "words"), [(True, "still served"), (False, "are refused")])
def test_slack_body_says_what_becomes_of_requests_when_the_limit_is_reached(is_soft: bool, words: str) -> None:
    assert words in json.loads(messages.body("slack", alert(threshold_percent=100, is_soft=is_soft)))["text"]


def test_slack_body_escapes_names() -> None:
    text = json.loads(messages.body("slack", alert(budget_name='<!channel> & "co"\n')))["text"]
    assert '*Budget &lt;!channel&gt; &amp; "co" *' in text


def test_same_alert_has_the_same_bytes_in_each_attempt() -> None:
    assert messages.body("json", alert()) == messages.body("json", alert())


@pytest.mark.parametrize("form", ["json", "slack"])
def test_test_message_names_its_endpoint(form: messages.Format) -> None:
    body = messages.body(form, messages.Test(endpoint="whk_1", endpoint_name="ops", at=AT))
    assert b"ops" in body


@pytest.mark.parametrize(
    ("nano_usd", "expected"),
    [
        (0, "0.00"),
        (1, "0.000000001"),
        (12_500_000_000, "12.50"),
        (9_000_000_000_000_000, "9000000.00"),
        (123_456_000, "0.123456"),
    ],
)
def test_usd_is_exact(nano_usd: int, expected: str) -> None:
    assert messages.usd(nano_usd) == expected
