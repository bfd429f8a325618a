"""The parent of the edge's workers: starts, watches, replaces and stops them, and answers for all of them."""
