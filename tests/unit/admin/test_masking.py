"""Masking: secrets leave a snapshot, whatever depth they are at."""

from sluicegate.admin.changes.masking import STARS, hint, masked


def test_masked_replaces_secrets_at_any_depth() -> None:
    snapshot = {
        "name": "x",
        "api_key": "sk-1",
        "list": [{"token": "t", "id": "a"}],
        "inner": {"digest": "d", "credential": {"nonce": "n"}, "prefix": "sgk_"},
    }
    assert masked(snapshot) == {
        "name": "x",
        "api_key": STARS,
        "list": [{"token": STARS, "id": "a"}],
        "inner": {"digest": STARS, "credential": STARS, "prefix": "sgk_"},
    }


def test_masked_leaves_none_so_that_a_removed_secret_is_seen() -> None:
    assert masked({"api_key": None}) == {"api_key": None}


def test_masked_does_not_change_its_argument() -> None:
    snapshot = {"api_key": "sk-1"}
    masked(snapshot)
    assert snapshot == {"api_key": "sk-1"}


def test_hint_is_the_end_of_a_long_secret() -> None:
    assert hint("sk-0123456789abcdef") == "cdef"


def test_hint_is_none_when_the_secret_is_short() -> None:
    assert hint("0123456789abcde") is None
