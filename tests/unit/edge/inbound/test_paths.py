"""Paths and their aliases."""

import pytest

from sluicegate.edge.inbound.paths import DATA_PLANE, deployment_of, dialect_of, is_unsupported


def test_chat_has_its_aliases() -> None:
    assert set(DATA_PLANE) == {b"/v1/chat/completions", b"/chat/completions", b"/openai/v1/chat/completions"}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (b"/openai/deployments/demo/chat/completions", "demo"),
        (b"/openai/deployments/org/model/chat/completions", "org/model"),
        (b"/openai/deployments/a%20b/chat/completions", "a b"),
        (b"/openai/deployments//chat/completions", None),
        (b"/openai/deployments/chat/completions", None),
        (b"/openai/deployments/demo/embeddings", None),
        (b"/v1/chat/completions", None),
        (b"", None),
    ],
)
def test_deployment_is_what_the_path_names(path: bytes, expected: str | None) -> None:
    assert deployment_of(path) == expected


@pytest.mark.parametrize(
    ("path", "unsupported", "dialect"),
    [
        ("/v1/embeddings", True, "openai"),
        ("/embeddings", True, "openai"),
        ("/openai/v1/responses/resp_1", True, "openai"),
        ("/v1/messages", True, "anthropic"),
        ("/anthropic/v1/messages/count_tokens", True, "anthropic"),
        ("/anthropic/v1/other", False, "anthropic"),
        ("/v1/embeddings2", False, "openai"),
        ("/v1", False, "openai"),
        ("/v1/", False, "openai"),
        ("/", False, "openai"),
        ("//", False, "openai"),
    ],
)
def test_path_of_another_endpoint_is_told_from_no_path(path: str, unsupported: bool, dialect: str) -> None:
    assert is_unsupported(path) is unsupported
    assert dialect_of(path) == dialect
