"""What can be wrong with a record, and what a database failure means for the batch it hit."""

from typing import Final

import asyncpg

from sluicegate.store.transactions import is_transient, is_unavailable

# Class 22: the value is out of its domain; 23: a constraint; 54: too large for an index or a row.
_DATA_CLASSES: Final = ("22", "23", "54")


def is_data_error(error: BaseException) -> bool:
    """Tell whether some row, not the server and not the statement, is at fault.

    Everything else is tried again, for ever: a schema that is not migrated yet must never turn
    good records into dead letters.
    """
    if is_transient(error) or is_unavailable(error) or is_missing_partition(error):
        return False
    if isinstance(error, asyncpg.PostgresError):
        return str(error.sqlstate or "").startswith(_DATA_CLASSES)
    return isinstance(error, asyncpg.DataError | OverflowError | UnicodeError)


def is_missing_partition(error: BaseException) -> bool:
    """Tell whether a row had no partition to go to (a CHECK violation without a constraint's name)."""
    return isinstance(error, asyncpg.CheckViolationError) and not error.constraint_name
