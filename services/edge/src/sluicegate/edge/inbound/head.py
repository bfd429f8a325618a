"""A request's head: what the phases ask of it, worked out once, and how a head that comes again is known.

Theory: an SDK sends the same head again on a kept connection, request after request, and only the number
behind `content-length` differs. A parser is a function of its bytes. So where a read is the last head with
another length, and then exactly as many bytes, nothing is left to parse: the request is whole, and all that
its head says is known. Any other read goes to the parser, which has seen every head once.
"""

from typing import Final

from sluicegate.edge.inbound.paths import Endpoint

# What a client may say to the provider beside its body. Never its key, cookies or encodings.
PASSED_HEADERS: Final = (
    b"idempotency-key",
    b"openai-beta",
    b"openai-organization",
    b"openai-project",
    b"x-client-request-id",
)
_LONGEST_KNOWN_BYTES: Final = 4 * 1024
_LENGTH: Final = b"\r\ncontent-length:"
_LENGTH_DIGITS: Final = 8
_MAX_TRACEPARENT: Final = 55


class RequestHead:
    """What one head says. `headers` have lower-case names, the last of equal names; `credential` is b"" if none came.

    `deployment`: the model, where the path names it. `passed`: header lines for the provider.
    """

    __slots__ = (
        "credential",
        "deployment",
        "endpoint",
        "headers",
        "is_compressed",
        "is_json",
        "passed",
        "query",
        "traceparent",
    )

    def __init__(
        self, headers: dict[bytes, bytes], endpoint: Endpoint, query: bytes = b"", deployment: str | None = None
    ) -> None:
        self.headers = headers
        self.endpoint = endpoint
        self.query = query
        self.deployment = deployment
        self.credential = credential_of(headers)
        self.is_compressed = headers.get(b"content-encoding", b"identity").lower() != b"identity"
        self.is_json = b"json" in headers.get(b"content-type", b"json").lower()
        self.passed = b"".join(b"%b: %b\r\n" % (name, headers[name]) for name in PASSED_HEADERS if name in headers)
        traceparent = headers.get(b"traceparent", b"")
        is_good = 0 < len(traceparent) <= _MAX_TRACEPARENT and traceparent.isascii()
        self.traceparent = traceparent.decode() if is_good else None


def credential_of(headers: dict[bytes, bytes]) -> bytes:
    """Return the key that a request carries, wherever its SDK puts it; b"" if it carries none."""
    scheme, _, credential = headers.get(b"authorization", b"").partition(b" ")
    credential = credential.strip() if scheme.lower() == b"bearer" else b""
    return credential or headers.get(b"x-api-key", b"") or headers.get(b"api-key", b"")


class KnownHead:
    """The last head of a connection: its bytes around the length, and what it says."""

    __slots__ = ("_after", "_before", "_digits_start", "head")

    def __init__(self, head: RequestHead, before: bytes, after: bytes) -> None:
        self.head = head
        self._before = before
        self._digits_start = len(before)
        self._after = after

    def body_start(self, data: bytes) -> int:
        """Return where the body begins in a read that is one whole request under this head; 0: it is not that."""
        if data.startswith(self._before):
            end = data.find(b"\r", self._digits_start, self._digits_start + _LENGTH_DIGITS + 1)
            if end >= 0 and data.startswith(self._after, end):
                start = end + len(self._after)
                if data[self._digits_start : end] == b"%d" % (len(data) - start):
                    return start
        return 0


def learn(head: RequestHead, url: bytes, data: bytes) -> KnownHead | None:
    """Return the head at the start of a read as one that will be known again; `head` is what the parser made of it.

    None: it is not this head that the read begins with, or another length could change more than the body's end.
    """
    end = data.find(b"\r\n\r\n", 0, _LONGEST_KNOWN_BYTES) + 4
    if end == 3 or not data.startswith(b"POST %b HTTP/1.1\r\n" % url):
        return None
    text = data[:end].lower()
    start = text.find(_LENGTH) + len(_LENGTH)
    if text.count(b"content-length") != 1 or start < len(_LENGTH) or b"transfer-encoding" in text:
        return None
    while text[start : start + 1] == b" ":
        start += 1
    length = head.headers.get(b"content-length", b"")
    if not length.isdigit() or not text.startswith(length + b"\r\n", start):
        return None
    return KnownHead(head, data[:start], data[start + len(length) : end])
