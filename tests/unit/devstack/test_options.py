"""What the front hands to the supervisor."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sluicegate.devstack.stack.options import StackOptions, api_url, checked_provider_url


def test_options_come_back_equal_when_sent_as_json() -> None:
    options = StackOptions(home="/x", is_fresh=True, provider_url="http://h/v1", edge_workers=3)
    assert StackOptions.from_json(options.to_json()) == options


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("http://127.0.0.1:9000", "http://127.0.0.1:9000/v1"),
        ("http://127.0.0.1:9000/", "http://127.0.0.1:9000/v1"),
        ("https://host/v1", "https://host/v1"),
        ("https://host/openai/v1/", "https://host/openai/v1"),
    ],
)
def test_api_url_ends_before_chat_completions_when_given_a_server(given: str, expected: str) -> None:
    assert api_url(given) == expected


@pytest.mark.parametrize(
    "text",
    ["http://127.0.0.1:9000", "https://api.openai.com/v1", "http://[::1]:9000/v1", "https://host.example:8443/a/b/v1/"],
)
def test_provider_url_is_taken_as_it_is_when_a_server_can_be_there(text: str) -> None:
    assert checked_provider_url(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "127.0.0.1:9000",
        "ftp://host/v1",
        "http://",
        "http:///v1",
        "http://host:port/v1",
        "http://host:0/v1",
        "http://host:99999/v1",
        "http://[::1/v1",
        "http://a b/v1",
        "http://hôte/v1",
        "https://user:password@host/v1",
        "https://host/v1?key=1",
    ],
)
def test_provider_url_is_refused_when_no_server_can_be_there(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        checked_provider_url(text)


@pytest.mark.parametrize("text", ["nonsense", "http://host:port"])
def test_up_refuses_at_once_and_makes_nothing_when_the_provider_url_is_none(text: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    done = subprocess.run(
        [sys.executable, "-m", "sluicegate.cli", "up", "--detach", "--home", str(home), "--provider-url", text],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"COLUMNS": "200"},
    )
    assert done.returncode == 2
    assert "--provider-url" in done.stderr
    assert text in done.stderr
    assert not home.exists()
