"""Budgets: what a scope may spend in each calendar period."""
