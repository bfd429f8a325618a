"""What can go wrong in this room."""


class AlertError(Exception):
    """The root of this room's errors."""


class AddressRefusedError(AlertError):
    """An endpoint's address is private, and the endpoint does not allow that."""


class NameNotResolvedError(AlertError):
    """An endpoint's host has no address."""
