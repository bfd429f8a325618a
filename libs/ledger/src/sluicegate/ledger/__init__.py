"""Meters shared over all edges through Valkey or Redis, leased in slices and admitted from memory."""
