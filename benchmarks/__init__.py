"""Measurements of the whole. Nothing in the product imports this."""
