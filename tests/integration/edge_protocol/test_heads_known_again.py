"""A connection that knows heads again against one that parses each: the same bytes, cut alike, get the same answers.

The bytes are mixed to mislead: two keys under heads of equal length, bodies that hold whole heads, headers
that hold request lines, and cuts where one thing could be taken for another. Whose request it was is read
from the records.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

import pytest
import pytest_asyncio

from sluicegate.contracts.keys import new_key
from sluicegate.devstack.edge_process import EdgeUnderTest, running_edge, until
from sluicegate.devstack.fake_provider.server import running
from sluicegate.devstack.raw_http import RawClient
from sluicegate.edge.inbound.protocol import EdgeProtocol

KEYS = {"a": new_key(), "b": new_key(), "nobody": new_key()}
CHAT = b'{"model":"demo","messages":[]}'
NEWLY = b'{"model":"demo","messages":[],"stream":true}'
LINE = b"POST /v1/chat/completions HTTP/1.1"
SEEDS = range(150)


class Seen(NamedTuple):
    """What a connection was answered, and what the gateway recorded of it."""

    answers: list[tuple[int, str | None]]
    records: list[tuple[str, int, int, bool]]
    is_closed: bool


def chat(body: bytes = CHAT, *lines: bytes, key: str | None = "a", line: bytes = LINE) -> bytes:
    credential = [] if key is None else [b"authorization: Bearer " + KEYS[key].encode()]
    head = [line, b"host: edge", *credential, *lines, b"content-length: %d" % len(body)]
    return b"\r\n".join([*head, b"", b""]) + body


def head_of(request: bytes) -> bytes:
    return request[: request.index(b"\r\n\r\n") + 4]


# What one read holds is up to the sender: each of these is a list of reads.
CRAFTED: dict[str, Sequence[bytes]] = {
    "a head in a body, then another's request": [
        head_of(chat(b"x" * (10 + len(chat(key="b"))))) + b"x" * 10,
        chat(key="b") + chat(key="a"),
        chat(key="b"),
        chat(key="a"),
    ],
    "a head behind another that waits to be told": [
        chat(CHAT, b"expect: 100-continue", key="b") + chat(CHAT, key="a"),
        chat(CHAT, b"expect: 100-continue", key="b"),
        chat(CHAT, key="a"),
    ],
    "a head in a header": [
        LINE + b"\r\nhost: edge\r\nauthorization: Bearer " + KEYS["a"].encode() + b"\r\nx-note: ",
        chat(key=None),
        chat(key=None),
        chat(key="nobody"),
    ],
    "a head before one that asks for another protocol": [
        chat(key="b") + chat(CHAT, b"connection: upgrade, http2-settings", b"upgrade: h2c", b"http2-settings: AA", key="a"),
        chat(key="b"),
        chat(key="a"),
    ],
    "a head in the body of a request to the app": [
        head_of(chat(b"x" * len(chat()), line=b"POST /nowhere HTTP/1.1")),
        chat(key="a") + chat(key="b"),
        chat(key="a"),
        chat(key="b"),
    ],
    "a head in a body that was refused": [
        head_of(chat(b"x" * len(chat(key="b")), key="nobody")),
        chat(key="b") + chat(key="a"),
        chat(key="b"),
    ],
    "a head in a chunk": [
        head_of(chat(key="a")).replace(b"content-length: 30", b"transfer-encoding: chunked") + b"%x\r\n" % len(chat(key="b")),
        chat(key="b") + b"\r\n0\r\n\r\n" + chat(key="a"),
        chat(key="b"),
        chat(key="a"),
    ],
}  # fmt: skip


def mixed(numbers: random.Random) -> list[bytes]:
    """Return reads of a connection's life, drawn at random."""
    reads: list[bytes] = []
    for _ in range(numbers.randint(1, 4)):
        key, other = numbers.sample(["a", "b", "a", "b", "nobody", None], k=2)
        inner = chat(key=other)
        filler = b" " * numbers.choice([0, 0, 9])
        open_head = [LINE, b"host: edge", b"authorization: Bearer " + KEYS[key or "nobody"].encode(), b"x-note: "]
        framed = head_of(chat(key=key)).replace(b"content-length: 30", b"transfer-encoding: chunked")
        lead, rest = numbers.choice(
            [
                (b"", chat(numbers.choice([CHAT, NEWLY, b"", b"[]", CHAT + b" " * 70]), key=key)),
                (b"", chat(CHAT, b"expect: 100-continue", key=other)),
                (b"", chat(CHAT, b"connection: upgrade", b"upgrade: h2c", key=key)),
                (b"", chat(CHAT, b"connection: close", key=key)),
                (b"\r\n", inner),
                (b"\r\n".join(open_head), inner),
                (head_of(chat(filler + inner, key=key)) + filler, inner),
                (head_of(chat(inner, line=b"GET /v1/models HTTP/1.1")), inner),
                (framed + b"%x\r\n" % len(inner), inner + b"\r\n0\r\n\r\n"),
            ]
        )
        follower = numbers.choice([b"", chat(key=key), chat(key=other), chat(NEWLY, key=key)])
        if numbers.random() < 0.2:
            at = numbers.randrange(len(rest) + 1)
            reads += [lead + rest[:at], rest[at:] + follower]
        else:
            reads += [lead, rest + follower]
        # Whoever took one thing for another answers these for somebody else.
        again = [inner, chat(key=key), chat(CHAT, b"expect: 100-continue", key=other)]
        reads += numbers.sample(again, k=numbers.randint(0, 3))
    return list(filter(None, reads))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def edge() -> AsyncIterator[EdgeUnderTest]:
    async with running() as provider, running_edge(provider.url) as edge:
        for name in ("a", "b"):
            edge.put_key(KEYS[name], id=f"key_{name}")
        yield edge


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", CRAFTED)
async def test_crafted_bytes_get_the_answers_of_a_parser(edge: EdgeUnderTest, name: str) -> None:
    await _compare(edge, CRAFTED[name])


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("seed", SEEDS)
async def test_random_bytes_get_the_answers_of_a_parser(edge: EdgeUnderTest, seed: int) -> None:
    await _compare(edge, mixed(random.Random(seed)))


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("seed", SEEDS[::3])
async def test_hasty_clients_that_take_no_answers_get_those_of_a_parser(edge: EdgeUnderTest, seed: int) -> None:
    """Reads come while earlier ones are answered, and while the client takes nothing."""
    await _compare(edge, mixed(random.Random(seed)), hurry=seed)


@pytest.mark.asyncio(loop_scope="module")
async def test_heads_are_known_again_where_this_is_proved(edge: EdgeUnderTest) -> None:
    """Else the comparison compares nothing."""
    client, protocol = _connect(edge, knows_heads=True)
    assert (await client.ask(chat())).status == 200
    assert protocol._known_head is not None
    protocol.parser = None  # type: ignore[assignment]  # whoever parses now fails
    assert (await client.ask(chat(NEWLY + b" " * 70))).status == 200
    client.close()


def _connect(edge: EdgeUnderTest, *, knows_heads: bool) -> tuple[RawClient, EdgeProtocol]:
    client = edge.memory_client()
    protocol = client.writer.transport.get_protocol()
    assert isinstance(protocol, EdgeProtocol)
    if not knows_heads:
        protocol._heads_to_learn = 0
    return client, protocol


async def _compare(edge: EdgeUnderTest, reads: Sequence[bytes], *, hurry: int | None = None) -> None:
    parsed = await _send(edge, reads, hurry, knows_heads=False)
    assert await _send(edge, reads, hurry, knows_heads=True) == parsed, reads


async def _send(edge: EdgeUnderTest, reads: Sequence[bytes], hurry: int | None, *, knows_heads: bool) -> Seen:
    first_record = len(edge.records)
    client, protocol = _connect(edge, knows_heads=knows_heads)
    if hurry is None:
        for read in reads:
            client.send(read)
            await until(lambda: _is_quiet(protocol))
    else:
        await _send_in_a_hurry(client, protocol, reads, random.Random(hurry))
    is_closed = client.writer.transport.is_closing() or protocol._is_broken
    client.close()
    await until(lambda: edge.edge.metrics.in_flight == 0)
    client.reader.feed_eof()
    answers = []
    while not client.reader.at_eof():
        response = await client.read_response()
        answers.append((response.status, response.code))
    assert edge.edge.buffered_bytes == 0
    records = [(r.key, r.status, r.input_tokens, r.streamed) for r in edge.records[first_record:]]
    return Seen(answers, records, is_closed)


async def _send_in_a_hurry(
    client: RawClient, protocol: EdgeProtocol, reads: Sequence[bytes], numbers: random.Random
) -> None:
    for read in reads:
        if numbers.random() < 0.3 and not protocol.flow.write_paused:
            protocol.pause_writing()
        client.send(read)
        for _ in range(numbers.choice([0, 0, 1, 9])):
            await asyncio.sleep(0)
        if numbers.random() < 0.5 and protocol.flow.write_paused:
            protocol.resume_writing()
    if protocol.flow.write_paused:
        protocol.resume_writing()
    await until(lambda: _is_quiet(protocol))


def _is_quiet(protocol: EdgeProtocol) -> bool:
    """Tell whether all that came is answered, as far as it is whole."""
    current = protocol._current
    return current is None or (current is protocol._receiving and not protocol._waiting)
