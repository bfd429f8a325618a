"""What a provider's answer can be, each with the way it passes: a stream, a document, an error.

An answer is fed by the relay of its exchange. Until its head has left (`exchange.has_answer_begun`) it may
hand the exchange back with `relay.fail_attempt`, and another target is tried; after that it ends it itself.
"""

from typing import Protocol


class Answer(Protocol):
    """An answer that is arriving."""

    def take(self, data: bytes, *, is_end: bool) -> None:
        """Take what one read brought of the body."""

    def lose(self, reason: str) -> None:
        """The provider's connection broke; `reason` says what it did."""

    def expire(self) -> None:
        """The provider has been silent for too long, or takes too long altogether."""

    def cancel(self) -> None:
        """The client has gone."""

    def stop(self) -> None:
        """The process ends now."""

    def break_off(self, reason: str) -> None:
        """End an answer that has begun to leave, in the way its client understands."""
