"""Limits in bodies: what they take, what they refuse, what a PATCH leaves alone."""

import pytest
from pydantic import ValidationError

from sluicegate.admin import limits
from sluicegate.admin.limits import MAX_LIMIT, WantedLimits
from sluicegate.contracts.catalogue import Limits

NAMES = ("requests_per_minute", "tokens_per_minute", "open_requests")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [None, 0, 1, MAX_LIMIT])
def test_limit_is_taken(name: str, value: int | None) -> None:
    assert getattr(limits.new(WantedLimits.model_validate({name: value})), name) == value


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [-1, 1.0, 0.5, "60", "", True, [], {}, MAX_LIMIT + 1])
def test_limit_is_refused_when_it_is_no_whole_number_in_bounds(name: str, value: object) -> None:
    with pytest.raises(ValidationError, match=name):
        WantedLimits.model_validate({name: value})


@pytest.mark.parametrize("name", ["requests_per_hour", "max_budget", "rpm", "limits"])
def test_limits_are_refused_when_one_is_unknown(name: str) -> None:
    with pytest.raises(ValidationError, match="extra_forbidden"):
        WantedLimits.model_validate({name: 1})


def test_patch_of_one_limit_leaves_the_others() -> None:
    present = Limits(requests_per_minute=1, tokens_per_minute=2, open_requests=3)
    patch = WantedLimits.model_validate({"tokens_per_minute": None, "open_requests": 0})
    assert limits.over(present, patch) == Limits(requests_per_minute=1, open_requests=0)
    assert limits.over(present, WantedLimits()) == present


def test_column_holds_only_what_is_set_and_reads_back() -> None:
    stated = Limits(requests_per_minute=0, open_requests=MAX_LIMIT)
    assert limits.column(Limits()) == "{}"
    assert limits.column(stated) == '{"requests_per_minute":0,"open_requests":1000000000000}'
    assert limits.decoded(limits.column(stated)) == stated
