"""What can go wrong in this room, and what a database failure means for the message it hit."""

from typing import Final

import asyncpg

from sluicegate.store.transactions import is_transient, is_unavailable

# Class 22: the value is out of its domain; 23: a constraint; 54: too large for an index or a row.
_DATA_CLASSES: Final = ("22", "23", "54")


class AlertError(Exception):
    """The root of this room's errors."""


class AddressRefusedError(AlertError):
    """An endpoint's address is private, and the endpoint does not allow that."""


class NameNotResolvedError(AlertError):
    """An endpoint's host has no address."""


def is_data_error(error: BaseException) -> bool:
    """Tell whether the event, not the server and not the statement, is at fault."""
    if is_transient(error) or is_unavailable(error):
        return False
    if isinstance(error, asyncpg.PostgresError):
        return str(error.sqlstate or "").startswith(_DATA_CLASSES)
    return isinstance(error, asyncpg.DataError | OverflowError | UnicodeError)
