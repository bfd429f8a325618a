"""Who is calling: the key from the headers, looked up in memory. Asks nobody."""

from sluicegate.edge.errors import Refusal
from sluicegate.edge.phases.exchange import Exchange

_MISSING = "No key was sent. Send your gateway key as `Authorization: Bearer <key>`."


def credential_of(head: dict[bytes, bytes]) -> bytes:
    """Return the key that a request carries, wherever its SDK puts it. Refusal: it carries none."""
    scheme, _, credential = head.get(b"authorization", b"").partition(b" ")
    credential = credential.strip() if scheme.lower() == b"bearer" else b""
    credential = credential or head.get(b"x-api-key", b"") or head.get(b"api-key", b"")
    if not credential:
        raise Refusal("missing_key", _MISSING)
    return credential


def authenticate(exchange: Exchange) -> None:
    """Set the exchange's principal: who is calling. Refusal: nobody who may."""
    principal = exchange.edge.view.principal(credential_of(exchange.head))
    if principal.expires_at_us is not None and principal.expires_at_us <= exchange.started_at_us:
        raise Refusal("key_expired", "This key has expired. Ask for a new one.")
    exchange.principal = principal
