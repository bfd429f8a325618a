"""What the supervisor tells the front: one JSON object per line on a pipe."""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import IO, Any, Literal

StepState = Literal["starting", "ready", "stopping", "stopped"]


@dataclass(frozen=True)
class Step:
    """A part of the stack changed its state."""

    name: str
    state: StepState
    detail: str = ""


@dataclass(frozen=True)
class Died:
    """A part ended by itself; its last log lines."""

    name: str
    text: str
    log_tail: str
    log_path: str


@dataclass(frozen=True)
class Note:
    """Something worth saying."""

    text: str


@dataclass(frozen=True)
class Ready:
    """All is up; `stack` is the content of stack.json."""

    stack: dict[str, Any]


@dataclass(frozen=True)
class Failed:
    """The stack ends because of this."""

    text: str


Report = Step | Died | Note | Ready | Failed

_KINDS: dict[str, type[Report]] = {kind.__name__: kind for kind in (Step, Died, Note, Ready, Failed)}


class Reporter:
    """Writes reports; a front that has gone away is no fault."""

    def __init__(self, stream: IO[str] = sys.stdout) -> None:
        self._stream = stream
        self._is_heard = True

    def __call__(self, report: Report) -> None:
        if not self._is_heard:
            return
        try:
            self._stream.write(json.dumps({"kind": type(report).__name__, **asdict(report)}) + "\n")
            self._stream.flush()
        except OSError:
            self._is_heard = False


def read_reports(stream: IO[str]) -> Iterator[Report]:
    """Until end-of-file."""
    for line in stream:
        fields = json.loads(line)
        yield _KINDS[fields.pop("kind")](**fields)
