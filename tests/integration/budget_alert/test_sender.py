"""One attempt against servers that behave badly, and names that resolve badly."""

import asyncio
import datetime as dt
import ipaddress
import ssl
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from sluicegate.budget_alert.addresses import Resolver
from sluicegate.budget_alert.policy import Answer
from sluicegate.budget_alert.sender import Sender
from sluicegate.devstack.servers.ports import LOOPBACK, free_port
from sluicegate.devstack.webhook_receiver import Webhook, WebhookReceiver, answer
from sluicegate.runtime.addresses import Address

BODY = b'{"a":1}'


class Names(Resolver):
    """Answers each look-up with the next list of addresses."""

    def __init__(self, *answers: Sequence[str]) -> None:
        super().__init__()
        self._answers = list(answers)
        self.asked: list[str] = []

    async def addresses(self, host: str, port: int) -> list[Address]:
        self.asked.append(host)
        return [ipaddress.ip_address(text) for text in self._answers.pop(0)]


@pytest.fixture
async def resolver() -> AsyncIterator[Resolver]:
    resolver = Resolver()
    yield resolver
    resolver.close()


async def send(sender: Sender, url: str, *, allows_private: bool = True) -> Answer:
    return await sender.send(url, {"webhook-id": "id"}, BODY, allows_private=allows_private)


async def test_name_is_resolved_once_and_its_address_is_connected_to(receiver: WebhookReceiver) -> None:
    """A second look-up, which could be answered otherwise, would find the list empty."""
    names = Names([LOOPBACK])
    found = await send(Sender(names), f"http://hooks.example:{receiver.port}/a?b=c")
    assert found == Answer(status=204)
    assert names.asked == ["hooks.example"]
    (webhook,) = receiver.received
    assert webhook.headers["host"] == f"hooks.example:{receiver.port}"
    assert (webhook.target, webhook.body) == ("/a?b=c", BODY)


async def test_name_is_refused_when_it_leads_inside(receiver: WebhookReceiver) -> None:
    found = await send(Sender(Names([LOOPBACK])), f"http://hooks.example:{receiver.port}/", allows_private=False)
    assert found.is_final
    assert "private" in (found.error or "")
    assert receiver.received == []


async def test_only_the_public_address_is_tried_when_a_name_has_both(receiver: WebhookReceiver) -> None:
    names = Names(["192.0.2.1", LOOPBACK])
    found = await send(Sender(names, total_timeout_s=0.5), f"http://x.example:{receiver.port}/", allows_private=False)
    assert found.error is not None
    assert receiver.received == []


async def test_next_address_is_tried_when_the_first_takes_no_connection(receiver: WebhookReceiver) -> None:
    names = Names(["127.0.0.2", LOOPBACK])  # the receiver listens on one address only
    assert await send(Sender(names), f"http://x.example:{receiver.port}/") == Answer(status=204)
    assert len(receiver.received) == 1


async def test_redirect_is_a_failure_and_not_followed(resolver: Resolver, receiver: WebhookReceiver) -> None:
    receiver.respond = answer(307, headers=f"location: {receiver.url}\r\n")
    found = await send(Sender(resolver), receiver.url)
    assert (found.status, found.error) == (307, "answered 307; redirects are not followed")
    assert len(receiver.received) == 1


async def test_answer_is_read_no_further_than_its_beginning(resolver: Resolver, receiver: WebhookReceiver) -> None:
    ended = asyncio.Event()

    async def endless(_webhook: Webhook, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 500 X\r\n\r\n")
        try:
            while True:
                writer.write(b"x" * 65_536)
                await writer.drain()
        finally:
            ended.set()

    receiver.respond = endless
    found = await send(Sender(resolver), receiver.url)
    assert (found.status, found.is_final) == (500, False)
    assert len(found.error or "") <= 300
    async with asyncio.timeout(30):
        await ended.wait()


async def test_success_does_not_wait_for_a_body_that_never_ends(resolver: Resolver, receiver: WebhookReceiver) -> None:
    async def unfinished(_webhook: Webhook, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 X\r\ncontent-length: 100\r\n\r\n")
        await writer.drain()
        await asyncio.Event().wait()

    receiver.respond = unfinished
    assert await send(Sender(resolver, total_timeout_s=60), receiver.url) == Answer(status=200)


async def test_attempt_ends_when_the_answer_only_trickles(resolver: Resolver, receiver: WebhookReceiver) -> None:
    async def trickle(_webhook: Webhook, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 X\r\nx-slow: ")
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.02)

    receiver.respond = trickle
    found = await send(Sender(resolver, total_timeout_s=0.3), receiver.url)
    assert found == Answer(error="no answer within 0.3 s")


async def test_compressed_answer_is_not_decoded(resolver: Resolver, receiver: WebhookReceiver) -> None:
    receiver.respond = answer(500, headers="content-encoding: gzip\r\n", body=b"\x1f\x8b no gzip \0 at all")
    found = await send(Sender(resolver), receiver.url)
    assert found.status == 500
    assert (found.error or "").isprintable()
    (webhook,) = receiver.received
    assert webhook.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize(("text", "expected"), [("120", 120.0), ("Wed, 21 Oct 2026 07:28:00 GMT", None), ("-1", None)])
async def test_retry_after_is_read_when_it_is_in_seconds(
    resolver: Resolver, receiver: WebhookReceiver, text: str, expected: float | None
) -> None:
    receiver.respond = answer(429, headers=f"retry-after: {text}\r\n")
    assert (await send(Sender(resolver), receiver.url)).retry_after_s == expected


async def test_refused_connection_and_garbage_are_failures(resolver: Resolver, receiver: WebhookReceiver) -> None:
    async def garbage(_webhook: Webhook, writer: asyncio.StreamWriter) -> None:
        writer.write(b"what do you want?\r\n\r\n")

    receiver.respond = garbage
    sender = Sender(resolver)
    for url in (receiver.url, f"http://{LOOPBACK}:{free_port(None)}/", "http://no-such-host.invalid/"):
        found = await send(sender, url)
        assert (found.status, found.is_final) == (None, False)
        assert found.error


@pytest.mark.parametrize(
    "url", ["", "hooks.example/x", "ftp://hooks.example:80/", "http://", "http://[::1", "http://a:b/"]
)
async def test_url_is_no_reason_to_try_again_when_it_cannot_be_used(resolver: Resolver, url: str) -> None:
    found = await send(Sender(resolver), url)
    assert found.is_final
    assert "URL" in (found.error or "")


def make_certificate(path: Path, name: str) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "receiver")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(pem + made.public_bytes(serialization.Encoding.PEM))
    return path


async def test_certificate_is_checked_for_the_name_though_the_address_is_connected_to(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path / "receiver.pem", "hooks.example")
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(certificate)
    asked_for: list[str | None] = []
    server.sni_callback = lambda _socket, name, _context: asked_for.append(name)
    trusting = ssl.create_default_context(cafile=str(certificate))
    async with WebhookReceiver(tls=server) as receiver:
        url = f"https://{{}}:{receiver.port}/"
        good = await send(Sender(Names([LOOPBACK]), tls=trusting), url.format("hooks.example"))
        wrong_name = await send(Sender(Names([LOOPBACK]), tls=trusting), url.format("other.example"))
        untrusted = await send(Sender(Names([LOOPBACK])), url.format("hooks.example"))
    assert good == Answer(status=204)
    assert "CERTIFICATE_VERIFY_FAILED" in (wrong_name.error or "")
    assert "CERTIFICATE_VERIFY_FAILED" in (untrusted.error or "")
    assert asked_for == ["hooks.example", "other.example", "hooks.example"]
    assert len(receiver.received) == 1
