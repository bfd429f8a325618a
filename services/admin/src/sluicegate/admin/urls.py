"""Addresses of other servers: whether a request could go there as they are written."""

import ipaddress
import re
from typing import Final
from urllib.parse import SplitResult, urlsplit

_MAX_HOST_LENGTH: Final = 253
_HOST: Final = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*\.?")
_PATH: Final = re.compile(r"(/([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})*)*")
_QUERY: Final = re.compile(r"([A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*")


def http_url(text: str) -> SplitResult:
    """Return the parts of an address; raise ValueError if no request could go there."""
    if not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("must be a URL in ASCII (write a host name of another script in its xn-- form)")
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("must begin with https:// or http:// and name a host")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must not hold a user or password")
    if parts.fragment or "#" in text:
        raise ValueError("must not hold a fragment")
    if parts.port == 0:  # reading the port raises ValueError for what is none
        raise ValueError("must not name port 0")
    if not _is_host(parts.hostname, is_bracketed="[" in parts.netloc):
        raise ValueError("must name a host that can exist: a DNS name or an IP address")
    if not _PATH.fullmatch(parts.path) or {".", ".."} & set(parts.path.split("/")):
        raise ValueError("must not hold a path that would have to be escaped or shortened first")
    if not _QUERY.fullmatch(parts.query):
        raise ValueError("must not hold a query that would have to be escaped first")
    return parts


def base_url(text: str) -> str:
    """Return an address that paths are added to, without its last slash; raise ValueError if it is none."""
    parts = http_url(text)
    if parts.query or "?" in text:
        raise ValueError("must not hold a query or fragment")
    return text.rstrip("/")


def _is_host(host: str, *, is_bracketed: bool) -> bool:
    """Tell whether this can be looked up or connected to, as `urlsplit` gives it: in lower case, without brackets."""
    if not is_bracketed:
        return len(host) <= _MAX_HOST_LENGTH and _HOST.fullmatch(host) is not None
    try:
        return ipaddress.IPv6Address(host).scope_id is None
    except ValueError:
        return False
