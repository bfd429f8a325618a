"""What a stack is started with; the front hands it to the supervisor as one JSON argument."""

import json
from dataclasses import asdict, dataclass
from typing import Self
from urllib.parse import urlsplit


@dataclass(frozen=True)
class StackOptions:
    """`is_tied`: the stack ends with its front, also when all is ready. `is_restarting`: what dies is started again."""

    home: str
    is_fresh: bool = False
    is_tied: bool = True
    is_restarting: bool = False
    provider_url: str | None = None
    provider_model: str | None = None
    edge_workers: int = 1

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**json.loads(text))


def checked_provider_url(text: str) -> str:
    """Return `text` if it can be a server's address; raise ValueError with what is wrong with it."""
    if not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("must be in ASCII and hold no space")
    parts = urlsplit(text)  # raises ValueError for odd brackets
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("must begin with http:// or https:// and name a host, such as http://127.0.0.1:9000/v1")
    if parts.port == 0:  # reading the port raises ValueError for what is none
        raise ValueError("must not name port 0")
    if "@" in parts.netloc:
        raise ValueError("must not hold a user or password")
    if "?" in text or "#" in text:
        raise ValueError("must not hold a query or fragment")
    return text


def api_url(provider_url: str) -> str:
    """The URL that `/chat/completions` is added to: a bare server address means its `/v1`."""
    url = provider_url.rstrip("/")
    return url if urlsplit(url).path else f"{url}/v1"
