"""The migration and the contract say the same about what is stored as a number."""

import re

import pytest

from sluicegate.contracts.usage import COST_SOURCES, OUTCOMES, USAGE_SOURCES
from sluicegate.store.migrations import MIGRATIONS

SQL = "\n".join(path.read_text() for path in sorted(MIGRATIONS.glob("01*.sql")))


@pytest.mark.parametrize(
    ("column", "values"), [("outcome", OUTCOMES), ("usage_source", USAGE_SOURCES), ("cost_source", COST_SOURCES)]
)
def test_view_names_each_number_as_the_contract_does(column: str, values: tuple[str, ...]) -> None:
    lists = re.findall(rf"ARRAY\[([^\]]*)\]\)\[(?:usage|series)\.{column} \+ 1\]", SQL)
    assert lists
    assert tuple(re.findall(r"'(\w+)'", lists[-1])) == values
