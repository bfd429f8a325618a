"""Time zones by their IANA names, from the pinned `tzdata`: what the machine knows beside it does not count.

Edges compute periods from the same package; a zone that only one of both knew would be a budget that nobody keeps.
"""

from functools import cache
from importlib import resources
from typing import Final

# In the list, but it stands for "no zone was chosen".
_NO_ZONE: Final = "Factory"


@cache
def zone_names() -> frozenset[str]:
    """Return every zone there is."""
    listed = resources.files("tzdata").joinpath("zones").read_text(encoding="ascii").split()
    return frozenset(listed) - {_NO_ZONE}


def known_zone(name: str) -> str:
    """Return a zone's name; raise ValueError for what is none."""
    if name not in zone_names():
        raise ValueError("must be an IANA time zone such as Europe/Berlin or UTC, as it is spelt there")
    return name
