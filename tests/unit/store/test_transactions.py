"""What a failure means: again at once, again later, or never."""

import asyncpg
import pytest

from sluicegate.store.transactions import is_transient, is_unavailable


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(),
        TimeoutError(),
        asyncpg.InterfaceError("connection is closed"),
        asyncpg.AdminShutdownError(),
        asyncpg.CannotConnectNowError(),
        asyncpg.TooManyConnectionsError(),
        asyncpg.DiskFullError(),
        asyncpg.LockNotAvailableError(),
        asyncpg.UndefinedTableError(),
        asyncpg.InvalidCatalogNameError(),
        asyncpg.ConnectionDoesNotExistError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_failure_is_the_servers_when_it_is_away_or_not_ready(error: Exception) -> None:
    assert is_unavailable(error)
    assert not is_transient(error)


@pytest.mark.parametrize("error", [asyncpg.DeadlockDetectedError(), asyncpg.SerializationError()])
def test_failure_is_transient_when_another_transaction_was_in_the_way(error: Exception) -> None:
    assert is_transient(error)
    assert not is_unavailable(error)


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.DataError("invalid input for query argument $1"),
        asyncpg.UniqueViolationError(),
        asyncpg.NumericValueOutOfRangeError(),
        ValueError("x"),
        asyncpg.PostgresSyntaxError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_failure_is_neither_when_data_or_statement_is_wrong(error: Exception) -> None:
    assert not is_transient(error)
    assert not is_unavailable(error)
