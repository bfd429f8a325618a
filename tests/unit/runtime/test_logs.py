"""Logs: one JSON object a line, and nothing secret in any of them."""

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from sluicegate.contracts.keys import new_key
from sluicegate.runtime import logs


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    handlers, level = logging.root.handlers, logging.root.level
    yield
    logging.root.handlers = handlers
    logging.root.setLevel(level)
    structlog.reset_defaults()


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    """Return what was logged."""
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_line_holds_event_room_level_and_fields(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("edge")
    logs.get_logger("sluicegate.edge.x").info("connected", attempts=3)
    (line,) = lines(capsys)
    assert line.items() >= {"event": "connected", "room": "edge", "level": "info", "attempts": 3}.items()
    assert line["logger"] == "sluicegate.edge.x"


def test_libraries_log_in_the_same_form(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("edge")
    logging.getLogger("nats").warning("lost %s", "connection")
    (line,) = lines(capsys)
    assert (line["event"], line["room"]) == ("lost connection", "edge")


def test_less_severe_lines_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("edge", "warning")
    logs.get_logger("a").info("no")
    logging.getLogger("b").info("no")
    assert lines(capsys) == []


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_secrets_are_redacted_wherever_they_stand(capsys: pytest.CaptureFixture[str], log_format: str) -> None:
    logs.configure("edge", log_format=log_format)  # type: ignore[arg-type]
    key = new_key()
    logger = logs.get_logger("a")
    logger.info(
        "request",
        headers={"authorization": f"Bearer {key}"},
        authorization="Basic hunter2",
        **{"x-api-key": "hunter2"},
    )
    free_text = f"key {key} used"
    logger.info(free_text)
    logger.info("dsn", url="postgresql://user:hunter2@host/db", bare="redis://:hunter2@host:1/0")
    logging.getLogger("b").warning("provider key %s and Bearer %s", "sk-proj-hunter2hunter2", "hunter2")
    try:
        raise ValueError(f"bad key {key} nats://u:hunter2@h")  # noqa: TRY301 - a traceback is wanted
    except ValueError:
        logger.exception("failed")
    shown = capsys.readouterr().err
    assert "failed" in shown
    assert "Traceback" in shown
    assert "hunter2" not in shown
    assert key not in shown
    assert key[:12] in shown  # the visible prefix, so that a line can be traced to its key


def test_redaction_leaves_other_text_alone() -> None:
    text = '{"event": "GET https://host:8080/v1/models took 3 ms", "sub": "gateway.request.completed.ten_1"}'
    assert logs.redact_text(text) == text


def test_line_is_json_when_a_field_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("edge")
    logs.get_logger("a").info("odd", value=object(), data=b"\xff")
    (line,) = lines(capsys)
    assert line["data"] == "b'\\xff'"
