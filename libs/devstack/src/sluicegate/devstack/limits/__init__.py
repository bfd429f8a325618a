"""Limits on a running stack: made by the admin API, spent by many clients, read where they are kept."""
