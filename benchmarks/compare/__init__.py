"""CPU per request and latency of the edge, beside nginx and beside no proxy at all, in one run."""
