"""Providers: upstream servers and their sealed credentials."""
