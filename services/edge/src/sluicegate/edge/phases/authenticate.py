"""Who is calling: the key from the headers, looked up in memory. Asks nobody."""

from sluicegate.edge.errors import Refusal
from sluicegate.edge.phases.exchange import Exchange

_MISSING = "No key was sent. Send your gateway key as `Authorization: Bearer <key>`."


def authenticate(exchange: Exchange) -> None:
    """Set the exchange's principal: who is calling. Refusal: nobody who may."""
    credential = exchange.head.credential
    if not credential:
        raise Refusal("missing_key", _MISSING)
    principal = exchange.edge.view.principal(credential)
    if principal.expires_at_us is not None and principal.expires_at_us <= exchange.started_at_us:
        raise Refusal("key_expired", "This key has expired. Ask for a new one.")
    exchange.principal = principal
