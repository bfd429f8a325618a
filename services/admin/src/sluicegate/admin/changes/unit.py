"""What one request changes: it collects audit and outbox rows beside the records, for one transaction.

Nothing here knows NATS; what a change means to the edges is the projection's business.
"""

import json
from dataclasses import dataclass
from typing import Any, Final, Literal

from sluicegate.admin.access import Caller
from sluicegate.admin.changes import repository
from sluicegate.admin.changes.masking import masked
from sluicegate.admin.errors import VersionConflictError
from sluicegate.contracts.catalogue import Noun
from sluicegate.contracts.ids import new_id
from sluicegate.store.pool import PoolConnection

AnyNoun = Literal["key", "webhook"] | Noun
Verb = Literal["created", "updated", "deleted", "revoked"]
Snapshot = dict[str, Any]
# What no edge needs to know: of their changes only the audit event is published.
_UNTOLD: Final = frozenset({"webhook"})


@dataclass(frozen=True, slots=True)
class Ref:
    """A record, by noun and id."""

    noun: AnyNoun
    id: str


class Unit:
    """The work of one transaction. `connection` is inside it."""

    def __init__(self, connection: PoolConnection, caller: Caller) -> None:
        self.connection = connection
        self._caller = caller
        self._audit: list[repository.AuditRow] = []
        self._outbox: list[repository.OutboxRow] = []

    @property
    def refs(self) -> tuple[Ref, ...]:
        """The records whose state the edges must learn, in order."""
        return tuple(dict.fromkeys(Ref(row.noun, row.record_id) for row in self._outbox if not row.is_projected))

    def note(self, verb: Verb, ref: Ref, *, before: Snapshot | None, after: Snapshot | None) -> None:
        """Record a change of a record: for the audit, and for the edges."""
        event_id = new_id("evt")
        self._audit.append(
            repository.AuditRow(
                event_id=event_id,
                actor=self._caller.actor,
                address=self._caller.address,
                noun=ref.noun,
                record_id=ref.id,
                verb=verb,
                before=_json(before),
                after=_json(after),
            )
        )
        is_projected = ref.noun in _UNTOLD
        self._outbox.append(repository.OutboxRow(ref.noun, ref.id, event_id, is_projected))

    def touch(self, ref: Ref) -> None:
        """Say that what the edges see of a record changed with another one."""
        self._outbox.append(repository.OutboxRow(ref.noun, ref.id, None, is_projected=False))

    async def write(self) -> None:
        """Write what was collected; the last statement before the commit."""
        await repository.insert_audit(self.connection, self._audit)
        await repository.insert_outbox(self.connection, self._outbox)


def check_version(present: int, expected: int | None) -> None:
    """Raise VersionConflictError unless the caller saw the present version, or did not ask."""
    if expected is not None and expected != present:
        raise VersionConflictError(
            f"The record is at version {present}, not {expected}.",
            "Read it again, apply your change to what it is now, and send that version as If-Match.",
        )


def _json(snapshot: Snapshot | None) -> str | None:
    return None if snapshot is None else json.dumps(masked(snapshot), ensure_ascii=False)
