"""What the front hands to the supervisor."""

import pytest

from sluicegate.devstack.stack.options import StackOptions, api_url


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
