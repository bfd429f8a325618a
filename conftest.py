"""Fixtures for every test: the embedded servers. Helpers live in `sluicegate.devstack`, never here."""

import importlib.util

_FIXTURES = "sluicegate.devstack.fixtures"
pytest_plugins = [_FIXTURES] if importlib.util.find_spec(_FIXTURES) else []
