"""What can be wrong with a record, and what a database failure means for the batch it hit."""

import asyncpg

from sluicegate.store.transactions import is_data_error


def is_bad_record(error: BaseException) -> bool:
    """Tell whether some record is at fault; a partition that is missing can be made."""
    return is_data_error(error) and not is_missing_partition(error)


def is_missing_partition(error: BaseException) -> bool:
    """Tell whether a row had no partition to go to (a CHECK violation without a constraint's name)."""
    return isinstance(error, asyncpg.CheckViolationError) and not error.constraint_name
