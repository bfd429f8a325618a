"""Alerts about budgets: stored once, delivered as signed webhooks; and the auditor of the meters."""
