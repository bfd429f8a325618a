"""Which failures may ever make a record a dead letter."""

import asyncpg
import pytest

from sluicegate.usage_writer.errors import is_bad_record, is_missing_partition


def violation(constraint: str | None) -> asyncpg.CheckViolationError:
    error = asyncpg.CheckViolationError("violated")
    error.constraint_name = constraint
    return error


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.CharacterNotInRepertoireError(),
        asyncpg.NumericValueOutOfRangeError(),
        asyncpg.UniqueViolationError(),
        asyncpg.ProgramLimitExceededError(),
        asyncpg.DataError("invalid input"),
        OverflowError(),
        UnicodeEncodeError("utf-8", "\ud83d", 0, 1, "surrogates not allowed"),
        violation("some_check"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_record_is_at_fault_when_its_values_are_refused(error: Exception) -> None:
    assert is_bad_record(error)


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.UndefinedTableError(),
        asyncpg.UndefinedColumnError(),
        asyncpg.PostgresSyntaxError(),
        asyncpg.InsufficientPrivilegeError(),
        asyncpg.ReadOnlySQLTransactionError(),
        asyncpg.DeadlockDetectedError(),
        asyncpg.DiskFullError(),
        asyncpg.InterfaceError("closed"),
        ConnectionResetError(),
        KeyError("a fault of our own"),
        violation(None),
    ],
    ids=lambda error: type(error).__name__,
)
def test_record_is_kept_when_anything_else_is_at_fault(error: Exception) -> None:
    assert not is_bad_record(error)


def test_partition_is_missing_when_a_check_without_a_name_fails() -> None:
    assert is_missing_partition(violation(None))
    assert not is_missing_partition(violation("usage_check"))
