"""Secrets leave a snapshot before it is written down. The last line of defence: snapshots are made without them."""

from typing import Any, Final

SECRET_FIELDS: Final = frozenset({"key", "api_key", "digest", "credential", "password", "secret", "token"})
STARS: Final = "***"
HINT_LENGTH: Final = 4
# Below this length, four characters would give away too much.
_MIN_LENGTH_FOR_HINT: Final = 16


def masked(value: Any) -> Any:
    """Return a copy in which what stands under a secret's name is stars; None stays None."""
    if isinstance(value, dict):
        return {
            name: STARS if name in SECRET_FIELDS and inner is not None else masked(inner)
            for name, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [masked(inner) for inner in value]
    return value


def hint(secret: str) -> str | None:
    """Return the end of a secret, to tell one from another; None for a short one."""
    return secret[-HINT_LENGTH:] if len(secret) >= _MIN_LENGTH_FOR_HINT else None
