"""Which paths exist, under which names, and what they are."""

from typing import Final, NamedTuple
from urllib.parse import unquote

from sluicegate.edge.errors import Dialect


class Endpoint(NamedTuple):
    """A data-plane endpoint: its name in records and metrics, its dialect, its path at the provider."""

    name: str
    dialect: Dialect
    provider_path: bytes


CHAT: Final = Endpoint("chat.completions", "openai", b"/chat/completions")
MODELS: Final = Endpoint("models", "openai", b"/models")

# Paths of POST requests that the protocol class takes over.
DATA_PLANE: Final[dict[bytes, Endpoint]] = {
    prefix + b"/chat/completions": CHAT for prefix in (b"/v1", b"", b"/openai/v1")
}

# Azure's SDK names the model in the path: /openai/deployments/{alias}/chat/completions.
_DEPLOYMENTS: Final = b"/openai/deployments/"
_CHAT_SUFFIX: Final = b"/chat/completions"

MODELS_PREFIXES: Final = ("/v1/models", "/models", "/openai/v1/models")

# Known to OpenAI's or Anthropic's SDK, and not served here.
_UNSUPPORTED: Final = (
    "assistants",
    "audio",
    "batches",
    "completions",
    "containers",
    "conversations",
    "embeddings",
    "evals",
    "files",
    "fine_tuning",
    "images",
    "messages",
    "moderations",
    "organization",
    "realtime",
    "rerank",
    "responses",
    "threads",
    "uploads",
    "vector_stores",
    "videos",
)


def deployment_of(path: bytes) -> str | None:
    """Return the alias in the path of a chat request as Azure's SDK sends it; None: it is another path."""
    if not (path.startswith(_DEPLOYMENTS) and path.endswith(_CHAT_SUFFIX)):
        return None
    return unquote(path[len(_DEPLOYMENTS) : -len(_CHAT_SUFFIX)].decode("ascii", "replace")) or None


def plain_path(path: str) -> str:
    """Return the path without the prefix under which other tools reach it: `/openai/v1/x` → `/x`."""
    for prefix in ("/openai/v1/", "/anthropic/v1/", "/v1/"):
        if path.startswith(prefix):
            return path[len(prefix) - 1 :]
    return path


def is_unsupported(path: str) -> bool:
    """Tell whether a path is an endpoint of a known SDK that the gateway does not serve."""
    if path.startswith("/openai/deployments/"):
        return True
    return plain_path(path).split("/", 2)[1] in _UNSUPPORTED


def dialect_of(path: str) -> Dialect:
    """Return the dialect in which errors on this path are written."""
    is_anthropic = path.startswith("/anthropic/") or plain_path(path).split("/", 2)[1] == "messages"
    return "anthropic" if is_anthropic else "openai"
