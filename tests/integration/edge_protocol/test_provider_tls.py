"""Providers behind TLS: a certificate that is trusted, one that is not, and ends that TLS shows otherwise."""

import asyncio
import datetime as dt
import ipaddress
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from sluicegate.devstack.edge_process import EdgeUnderTest
from sluicegate.devstack.raw_http import chat

DOCUMENT = b'{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}'
EVENTS = b'data: {"choices":[{"delta":{"content":"Hi"}}]}\n\ndata: [DONE]\n\n'
Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate of its own authority, for 127.0.0.1, with its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "provider")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path = tmp_path / "provider.pem"
    path.write_bytes(pem + made.public_bytes(serialization.Encoding.PEM))
    return path


@asynccontextmanager
async def tls_provider(certificate: Path, answer: Answer) -> AsyncIterator[str]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                await reader.readexactly(length)
                await answer(writer)
        except (OSError, asyncio.IncompleteReadError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


async def whole(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(DOCUMENT), DOCUMENT))
    await writer.drain()


async def until_closed(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + DOCUMENT)
    await writer.drain()
    writer.close()


async def until_cut(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + DOCUMENT)
    await writer.drain()
    writer.transport.abort()


async def streamed(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(EVENTS))
    for byte in EVENTS:
        writer.write(bytes((byte,)))
        await writer.drain()


@pytest.fixture
def trusted(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    return certificate


@pytest.mark.parametrize("answer", [whole, until_closed])
async def test_answer_passes_when_the_certificate_is_trusted(
    edge: EdgeUnderTest, trusted: Path, answer: Answer
) -> None:
    async with tls_provider(trusted, answer) as url, edge.client() as client:
        edge.put_provider(base_url=url)
        for _ in range(2):
            response = await client.ask(chat(key=edge.key))
            assert (response.status, response.body) == (200, DOCUMENT)
        client.close()
    assert [record.outcome for record in edge.records] == ["success", "success"]


async def test_stream_passes_over_tls(edge: EdgeUnderTest, trusted: Path) -> None:
    async with tls_provider(trusted, streamed) as url, edge.client() as client:
        edge.put_provider(base_url=url)
        assert (await client.ask(chat(key=edge.key, stream=True))).body == EVENTS


async def test_answer_without_length_is_cut_when_tls_was_not_closed(edge: EdgeUnderTest, trusted: Path) -> None:
    async with tls_provider(trusted, until_cut) as url, edge.client() as client:
        edge.put_provider(base_url=url)
        response = await client.ask(chat(key=edge.key))
        assert (response.status, response.code) == (502, "provider_error")


async def test_nothing_is_sent_when_the_certificate_is_not_trusted(edge: EdgeUnderTest, certificate: Path) -> None:
    async with tls_provider(certificate, whole) as url, edge.client() as client:
        edge.put_provider(base_url=url)
        response = await client.ask(chat(key=edge.key))
        assert (response.status, response.code) == (502, "provider_error")
        assert "certificate" in response.json["error"]["message"].lower()
