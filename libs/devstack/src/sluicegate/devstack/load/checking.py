"""Is this answer right? Every answer is checked whole; the work is done once for each distinct answer.

A fake provider gives the same bytes to the same request, so after the first answer was parsed and looked at closely,
an answer whose bytes behind the head are identical, under the same framing header, needs one comparison. Anything
else is parsed and looked at closely again. That keeps a driver that checks everything as cheap as one that does not.
"""

import hashlib
from typing import Any, Final, Literal

import httptools
import msgspec

_OK: Final = b"HTTP/1.1 200 "
_HEAD_END: Final = b"\r\n\r\n"
_LAST_CHUNK: Final = b"0\r\n\r\n"
_MOST_KNOWN: Final = 256


class WrongAnswerError(Exception):
    """The answer is complete, and not what was asked for. The text is short and countable."""


class Checker:
    """Knows the right answers seen so far."""

    def __init__(self, expects: Literal["json", "stream"], events: int) -> None:
        self._expects = expects
        self._events = events
        self._known: dict[bytes, bytes] = {}
        self._known_bodies: set[bytes] = set()

    @property
    def digests(self) -> list[str]:
        """SHA-256 of each distinct right body."""
        return sorted(hashlib.sha256(body).hexdigest() for body in self._known_bodies)

    def is_known(self, data: bytes) -> bool:
        """Whether these bytes are one whole right answer, by comparison alone."""
        if not data.startswith(_OK):
            return False
        head_end = data.find(_HEAD_END) + 4
        framing = self._known.get(data[head_end:])
        return framing is not None and data.find(framing, 0, head_end) >= 0

    def check(self, data: bytes, *, is_closed: bool = False) -> bool:
        """Whether the answer is complete. Raises WrongAnswerError when it is complete and wrong."""
        answer = _Answer()
        answer.read(data, is_closed=is_closed)
        if not answer.is_complete:
            if is_closed:
                raise WrongAnswerError("closed before the end")
            return False
        if answer.has_more:
            raise WrongAnswerError("bytes behind the answer")
        self._check_parsed(answer)
        if len(self._known) < _MOST_KNOWN and answer.framing:
            self._known[data[data.find(_HEAD_END) + 4 :]] = answer.framing
        return True

    def _check_parsed(self, answer: "_Answer") -> None:
        if answer.status != 200:
            raise WrongAnswerError(f"status {answer.status}: {answer.error_code()}")
        body = answer.body
        if body in self._known_bodies:
            return
        if self._expects == "json":
            check_completion(body)
        else:
            if not answer.content_type.startswith(b"text/event-stream"):
                raise WrongAnswerError("content type of a stream")
            check_stream(body, self._events)
        if len(self._known_bodies) < _MOST_KNOWN:
            self._known_bodies.add(body)


def check_completion(body: bytes) -> None:
    """Raises WrongAnswerError unless the body is one whole chat completion with usage."""
    answer = _decode(body)
    try:
        is_right = (
            answer["object"] == "chat.completion"
            and isinstance(answer["choices"][0]["message"]["content"], str)
            and answer["usage"]["total_tokens"] > 0
        )
    except (KeyError, IndexError, TypeError) as error:
        raise WrongAnswerError("shape of the completion") from error
    if not is_right:
        raise WrongAnswerError("content of the completion")


def check_stream(body: bytes, events: int) -> None:
    """Raises WrongAnswerError unless the body is `events` chunks, the last with a finish reason, then [DONE]."""
    frames = body.split(b"\n\n")
    if frames[-2:] != [b"data: [DONE]", b""]:
        raise WrongAnswerError("end of the stream")
    with_choices = 0
    finish_reason = None
    for frame in frames[:-2]:
        if not frame.startswith(b"data: ") or b"\n" in frame:
            raise WrongAnswerError("framing of an event")
        chunk = _decode(frame[6:])
        if chunk.get("object") != "chat.completion.chunk" or "choices" not in chunk:
            raise WrongAnswerError("shape of an event")
        if chunk["choices"]:
            with_choices += 1
            finish_reason = chunk["choices"][0]["finish_reason"]
    if with_choices != events or finish_reason is None:
        raise WrongAnswerError(f"{with_choices} events, not {events}")


def _decode(text: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise WrongAnswerError("JSON") from error


class Partial:
    """An answer that came in more than one read: kept in pieces, and asked cheaply whether it may be complete."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0
        self._whole_size: int | None = None
        self._has_head = False

    @property
    def data(self) -> bytes:
        """Everything so far."""
        return b"".join(self._pieces)

    def add(self, data: bytes) -> bool:
        """Whether the answer may be complete now; never wrongly False, but for an answer that ends with the close."""
        self._pieces.append(data)
        self._size += len(data)
        if not self._has_head:
            self._look_for_head()
        if self._whole_size is not None:
            return self._size >= self._whole_size
        ending = data if len(data) >= len(_LAST_CHUNK) else b"".join(self._pieces[-len(_LAST_CHUNK) :])
        return ending.endswith(_LAST_CHUNK)

    def _look_for_head(self) -> None:
        data = self.data
        head_end = data.find(_HEAD_END)
        if head_end < 0:
            return
        self._has_head = True
        _, found, rest = data[:head_end].lower().partition(b"content-length:")
        if found:
            self._whole_size = head_end + len(_HEAD_END) + int(rest.partition(b"\r\n")[0])


class _Answer:
    """One answer, parsed by httptools; 1xx answers before it are passed over."""

    def __init__(self) -> None:
        self.status = 0
        self.content_type = b""
        self.framing = b""
        self.body = b""
        self.is_complete = False
        self.has_more = False
        self._parser = httptools.HttpResponseParser(self)

    def read(self, data: bytes, *, is_closed: bool) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise WrongAnswerError("malformed HTTP") from error
        if is_closed and self.status and not self.framing:
            self.is_complete = True

    def error_code(self) -> str:
        try:
            return str(_decode(self.body)["error"]["code"])
        except (WrongAnswerError, KeyError, TypeError):
            return "no error object"

    def on_message_begin(self) -> None:
        if self.is_complete:
            self.has_more = True
            return
        self.status = 0
        self.content_type = self.framing = self.body = b""

    def on_header(self, name: bytes, value: bytes) -> None:
        folded = name.lower()
        if folded == b"content-type":
            self.content_type = value
        elif folded in {b"content-length", b"transfer-encoding"}:
            self.framing = name + b": " + value

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.is_complete = self.status >= 200
