"""Alerts: thresholds that budgets have reached. budget-alert writes them, nobody changes them."""
