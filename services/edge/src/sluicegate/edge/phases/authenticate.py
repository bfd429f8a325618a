"""Who is calling: the key from the headers, looked up in memory. Asks nobody."""

from sluicegate.edge.errors import Refusal
from sluicegate.edge.mirrors.view import Principal, View
from sluicegate.edge.phases.exchange import Exchange

_MISSING = "No key was sent. Send your gateway key as `Authorization: Bearer <key>`."


def credential_of(head: dict[bytes, bytes]) -> bytes:
    """Return the key that a request carries. Refusal: it carries none."""
    authorization = head.get(b"authorization")
    if authorization is not None:
        scheme, _, credential = authorization.partition(b" ")
        if scheme.lower() == b"bearer":
            credential = credential.strip()
            if credential:
                return credential
        raise Refusal("missing_key", _MISSING)
    credential = head.get(b"x-api-key") or head.get(b"api-key") or b""
    if not credential:
        raise Refusal("missing_key", _MISSING)
    return credential


def identify(view: View, head: dict[bytes, bytes], now_us: int) -> Principal:
    """Return who is calling at `now_us` (µs since the epoch). Refusal: nobody who may."""
    principal = view.principal(credential_of(head))
    if principal.expires_at_us is not None and principal.expires_at_us <= now_us:
        raise Refusal("key_expired", "This key has expired. Ask for a new one.")
    return principal


def authenticate(exchange: Exchange) -> None:
    """Set the exchange's principal."""
    exchange.principal = identify(exchange.edge.view, exchange.head, exchange.started_at_us)
