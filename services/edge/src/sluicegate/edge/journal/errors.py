"""What the journal tells its callers that it cannot do."""


class JournalWriteError(Exception):
    """An admission could not be written down, so the request must not go out: answer 503 gateway_overloaded."""
