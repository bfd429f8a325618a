"""Tenants: the customers of the platform."""
