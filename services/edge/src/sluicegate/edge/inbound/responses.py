"""Response heads and error responses, as bytes. Status lines are built once, at import."""

from http import HTTPStatus
from typing import Final

from sluicegate.edge.errors import Dialect, Refusal


def _status_line(status: int) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP/1.1 {status} {phrase}\r\n".encode()


STATUS_LINES: Final = {status: _status_line(status) for status in range(200, 600)}
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
CLOSE: Final = b"connection: close\r\n"
CHUNKED: Final = b"transfer-encoding: chunked\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"


def as_chunk(data: bytes) -> bytes:
    """Return data as one chunk of a body; nothing where there is none, for an empty chunk would end it."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


def render_refusal(refusal: Refusal, dialect: Dialect, request_id: str, lines: bytes, *, keep_alive: bool) -> bytes:
    """Return the whole response to a refused request; `lines`: whole header lines, the date among them."""
    body = refusal.body(dialect, request_id)
    head = [
        STATUS_LINES[refusal.status],
        b"content-type: application/json\r\nx-request-id: ",
        request_id.encode(),
        b"\r\n",
        lines,
    ]
    head += [name + b": " + value + b"\r\n" for name, value in refusal.headers()]
    head.append(b"content-length: %d\r\n" % len(body))
    if not keep_alive:
        head.append(CLOSE)
    return b"".join([*head, b"\r\n", body])
