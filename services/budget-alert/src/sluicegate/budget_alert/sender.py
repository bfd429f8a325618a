"""One attempt: an HTTP POST to an address that was looked at, with an end to everything: time, redirects, bytes read.

httpx is given the address in place of the name, and the name again as `Host` and for TLS (server name, certificate),
so nothing is resolved a second time. Each attempt has a connection of its own: a kept one would be found by its
address, and might have been made for another name there.
"""

import asyncio
import ssl
import time
from collections.abc import Mapping
from typing import Final

import httpx

from sluicegate.budget_alert.addresses import Resolver, allowed
from sluicegate.budget_alert.errors import AddressRefusedError, AlertError
from sluicegate.budget_alert.policy import Answer
from sluicegate.runtime.addresses import Address

TOTAL_TIMEOUT_S: Final = 10.0
_CONNECT_TIMEOUT_S: Final = 3.0
_ADDRESSES_TRIED: Final = 3
_MOST_ANSWER_BYTES: Final = 1_024
_MOST_ERROR_CHARACTERS: Final = 300
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_USER_AGENT: Final = "Sluicegate-Webhooks/1"


class Sender:
    """Sends webhooks. Never raises for what a receiver, a name or a network may do."""

    def __init__(
        self,
        resolver: Resolver,
        *,
        tls: ssl.SSLContext | None = None,
        total_timeout_s: float = TOTAL_TIMEOUT_S,
    ) -> None:
        """`tls`: whom to trust; by default as httpx does, which `SSL_CERT_FILE` changes."""
        self._resolver = resolver
        self._tls = tls or httpx.create_ssl_context()
        self._total_timeout_s = total_timeout_s

    async def send(self, url: str, headers: Mapping[str, str], body: bytes, *, allows_private: bool) -> Answer:
        """Post `body` once and return what came of it."""
        try:
            async with asyncio.timeout(self._total_timeout_s):
                return await self._send(httpx.URL(url), headers, body, allows_private=allows_private)
        except AddressRefusedError as error:
            return Answer(error=str(error), is_final=True)
        except TimeoutError:
            return Answer(error=f"no answer within {self._total_timeout_s:g} s")
        except (AlertError, httpx.HTTPError, OSError, ssl.SSLError) as error:
            return Answer(error=_text(error))
        except (httpx.InvalidURL, ValueError) as error:
            return Answer(error=f"the URL cannot be used: {_text(error)}", is_final=True)

    async def _send(self, url: httpx.URL, headers: Mapping[str, str], body: bytes, *, allows_private: bool) -> Answer:
        if url.scheme not in _DEFAULT_PORTS or not url.host:
            return Answer(error="the URL cannot be used: it must begin with http:// or https://", is_final=True)
        port = url.port or _DEFAULT_PORTS[url.scheme]
        name = url.raw_host.decode("ascii")
        found = await self._resolver.addresses(name, port)
        addresses = allowed(found, allows_private=allows_private)[:_ADDRESSES_TRIED]
        for place, address in enumerate(addresses, start=1):
            try:
                return await self._post(url, name, address, headers, body)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                # Nothing was sent yet, so the next address is no repeat.
                if place == len(addresses):
                    raise
        raise AssertionError("there is always an address")

    async def _post(
        self, url: httpx.URL, name: str, address: Address, headers: Mapping[str, str], body: bytes
    ) -> Answer:
        transport = httpx.AsyncHTTPTransport(verify=self._tls, trust_env=False)
        timeout = httpx.Timeout(self._total_timeout_s, connect=_CONNECT_TIMEOUT_S)
        async with httpx.AsyncClient(
            transport=transport, timeout=timeout, follow_redirects=False, trust_env=False
        ) as client:
            request = client.build_request(
                "POST",
                url.copy_with(host=str(address)),
                content=body,
                headers={
                    **headers,
                    "host": url.netloc.decode("ascii"),
                    "content-type": "application/json",
                    "user-agent": _USER_AGENT,
                    "accept-encoding": "identity",
                    "connection": "close",
                },
                extensions={"sni_hostname": name, "timeout": timeout.as_dict()},
            )
            response = await client.send(request, stream=True)
            try:
                return await _answer(response)
            finally:
                await response.aclose()


async def _answer(response: httpx.Response) -> Answer:
    status = response.status_code
    if 200 <= status < 300:
        return Answer(status=status)
    if 300 <= status < 400:
        return Answer(status=status, error=f"answered {status}; redirects are not followed")
    detail = await _beginning(response)
    return Answer(
        status=status,
        error=_clean(f"answered {status}: {detail}" if detail else f"answered {status}"),
        retry_after_s=_retry_after_s(response.headers.get("retry-after", "")),
    )


async def _beginning(response: httpx.Response) -> str:
    """Return how the answer begins, as it was sent: it may be endless, or grow without end when decoded."""
    found = b""
    async for part in response.aiter_raw(_MOST_ANSWER_BYTES):
        found += part
        if len(found) >= _MOST_ANSWER_BYTES:
            break
    return found[:_MOST_ANSWER_BYTES].decode(errors="replace").strip()


def _retry_after_s(text: str) -> float | None:
    """Seconds only: the other form is a date, which needs the receiver's clock to be right."""
    return float(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _text(error: Exception) -> str:
    return _clean(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


def _clean(text: str) -> str:
    """Cut to what a row holds, and to what can be stored and shown."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:_MOST_ERROR_CHARACTERS])


def now_s() -> int:
    """Return the time that a signature states."""
    return int(time.time())
