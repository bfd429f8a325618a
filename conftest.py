"""Fixtures for every test: the embedded servers. Helpers live in `sluicegate.devstack`, never here."""

pytest_plugins = ["sluicegate.devstack.fixtures"]
