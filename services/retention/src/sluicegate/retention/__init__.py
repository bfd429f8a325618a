"""Partitions: creates ahead, drops behind."""
