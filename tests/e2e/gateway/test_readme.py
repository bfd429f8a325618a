"""The README's own examples, run as they stand there against the running stack."""

import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sluicegate.devstack.stack_client import Stack

REPOSITORY = Path(__file__).parents[3]
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", (REPOSITORY / "README.md").read_text(), re.DOTALL | re.MULTILINE)


def _block(language: str, having: str) -> str:
    found: list[str] = [text for kind, text in BLOCKS if kind == language and having in text]
    assert len(found) == 1
    return found[0]


@pytest.fixture(autouse=True)
def environment(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICEGATE_URL", stack.openai_base_url)
    monkeypatch.setenv("SLUICEGATE_KEY", stack.key)


@pytest.fixture
def checkout(stack: Stack, tmp_path: Path) -> Path:
    """A folder that looks like a checkout whose stack is up."""
    (tmp_path / ".sluicegate").mkdir()
    (tmp_path / ".sluicegate/stack.json").symlink_to(stack.path)
    return tmp_path


def test_curl_line_streams_an_answer(checkout: Path) -> None:
    found = subprocess.run(
        ["/bin/sh", "-c", _block("sh", "curl -N")], cwd=checkout, capture_output=True, text=True, timeout=60, check=True
    )

    assert found.stdout.endswith("data: [DONE]\n\n")


def test_sdk_example_prints_an_answer(checkout: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-c", _block("python", "OpenAI(")],
        cwd=checkout,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert found.stdout.strip()


def test_consumer_prints_usage_events_as_they_come(checkout: Path, stack: Stack) -> None:
    consumer = subprocess.Popen(
        [sys.executable, "-u", "-c", _block("python", "nats.connect")], cwd=checkout, stdout=subprocess.PIPE, text=True
    )
    ending = threading.Timer(60, consumer.kill)
    ending.start()
    try:
        subprocess.run(["/bin/sh", "-c", _block("sh", "curl -N")], cwd=checkout, capture_output=True, check=True)
        assert consumer.stdout is not None
        lines = (line.split() for line in consumer.stdout)
        line = next(line for line in lines if line[2] != "0")  # lists of models are recorded too
    finally:
        ending.cancel()
        consumer.kill()
        consumer.communicate()

    assert line[0].startswith("key_")
    assert line[1] == "success"
    assert int(line[3]) > 0, "the demo model has a price"
    assert stack.key not in line
