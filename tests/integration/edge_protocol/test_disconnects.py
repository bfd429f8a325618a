"""A client that goes away: the call to the provider ends within a second, and there is one record of it."""

import asyncio

import pytest

from sluicegate.devstack.edge_process import EdgeUnderTest, until
from sluicegate.devstack.fake_provider.calls import Call
from sluicegate.devstack.fake_provider.server import FakeProvider
from sluicegate.devstack.raw_http import RawClient, chat

leaving = pytest.mark.parametrize("leave", [RawClient.close, RawClient.reset], ids=["fin", "rst"])


async def the_call(provider: FakeProvider) -> Call:
    await until(lambda: provider.calls.total == 1)
    return provider.calls.recent[0]


async def quiet(edge: EdgeUnderTest) -> None:
    """Wait until nothing of any request is left."""
    await until(lambda: not edge.edge.open_exchanges and edge.edge.metrics.open_connections == 0)
    await asyncio.sleep(0.05)
    assert edge.edge.buffered_bytes == 0
    assert edge.edge.metrics.in_flight == 0


@leaving
@pytest.mark.parametrize("stream", [True, False])
async def test_call_is_cancelled_when_the_client_leaves_before_the_first_byte(
    edge: EdgeUnderTest, provider: FakeProvider, leave: object, stream: bool
) -> None:
    async with edge.client() as client:
        client.send(chat("silence=request", key=edge.key, stream=stream))
        call = await the_call(provider)
        leave(client)  # type: ignore[operator]
        await until(lambda: call.state == "cancelled", 1)
    record = await edge.record()
    assert (record.outcome, record.status, record.error_code) == ("client_cancelled", 499, "client_closed")
    assert (record.usage_source, record.output_tokens) == ("partial", 0)
    assert record.input_tokens == edge.journal.admissions[0].input_tokens > 0
    assert record.cost_nano_usd == record.input_tokens * 1_000
    await quiet(edge)
    assert len(edge.records) == 1


@pytest.mark.parametrize("edge_settings", [{"charge_cancelled_prompt": False}])
@pytest.mark.parametrize(
    ("knobs", "stream"), [("silence=request", True), ("silence=request", False), ("silence=head", True)]
)
async def test_nothing_is_charged_when_the_client_leaves_before_the_answer_and_prompts_are_free_then(
    edge: EdgeUnderTest, provider: FakeProvider, knobs: str, stream: bool
) -> None:
    async with edge.client() as client:
        client.send(chat(knobs, key=edge.key, stream=stream))
        call = await the_call(provider)
        client.close()
        await until(lambda: call.state == "cancelled", 1)
    record = await edge.record()
    assert (record.outcome, record.status, record.usage_source) == ("client_cancelled", 499, "none")
    assert (record.input_tokens, record.output_tokens, record.cost_nano_usd) == (0, 0, 0)
    await quiet(edge)
    assert len(edge.records) == 1


@pytest.mark.parametrize("edge_settings", [{"charge_cancelled_prompt": False}])
async def test_part_of_a_document_is_not_charged_when_none_of_it_has_left_and_prompts_are_free_then(
    edge: EdgeUnderTest, provider: FakeProvider
) -> None:
    async with edge.client() as client:
        client.send(chat("write=bytes&pace_ms=5", key=edge.key, stream=False))
        call = await the_call(provider)
        relay = next(iter(edge.edge.open_exchanges)).relay
        assert relay is not None
        await until(lambda: relay.first_byte_ns > 0)
        client.close()
        await until(lambda: call.state == "cancelled", 1)
    record = await edge.record()
    assert (record.outcome, record.usage_source, record.cost_nano_usd) == ("client_cancelled", "none", 0)


@pytest.mark.parametrize("edge_settings", [{"charge_cancelled_prompt": False}])
async def test_text_and_prompt_are_charged_when_the_answer_has_begun_whatever_the_setting(
    edge: EdgeUnderTest, provider: FakeProvider
) -> None:
    async with edge.client() as client:
        client.send(chat("events=10&gate_at=4&words=fourfour", key=edge.key, stream=True))
        await client.until(b"fourfour")
        call = await the_call(provider)
        await until(lambda: call.events_sent == 4)
        client.close()
    record = await edge.record()
    assert (record.outcome, record.usage_source) == ("client_cancelled", "partial")
    assert record.input_tokens == edge.journal.admissions[0].input_tokens > 0
    assert record.output_tokens > 0


@leaving
async def test_call_is_cancelled_and_text_charged_when_the_client_leaves_in_the_middle(
    edge: EdgeUnderTest, provider: FakeProvider, leave: object
) -> None:
    async with edge.client() as client:
        client.send(chat("events=10&gate_at=4&words=fourfour", key=edge.key, stream=True))
        await client.until(b"fourfour")
        call = await the_call(provider)
        await until(lambda: call.events_sent == 4)
        leave(client)  # type: ignore[operator]
        await until(lambda: call.state == "cancelled", 1)
    record = await edge.record()
    assert (record.outcome, record.status, record.usage_source) == ("client_cancelled", 499, "partial")
    assert record.output_tokens == 3 * 8 // 4
    assert record.input_tokens > 0
    assert record.first_token_us is not None
    await quiet(edge)
    assert len(edge.records) == 1


async def test_usage_seen_so_far_is_charged_when_it_is_cumulative(edge: EdgeUnderTest, provider: FakeProvider) -> None:
    async with edge.client() as client:
        client.send(chat("events=10&gate_at=4&usage=cumulative", key=edge.key, stream=True))
        call = await the_call(provider)
        await until(lambda: call.events_sent == 4)
        await client.until(b"finds")
        await client.until(b'"completion_tokens":4')
        client.close()
    record = await edge.record()
    assert (record.outcome, record.usage_source) == ("client_cancelled", "partial")
    assert (record.input_tokens, record.output_tokens) == (11, 4)


async def test_usage_is_waited_for_when_the_client_leaves_before_its_chunk(
    edge: EdgeUnderTest, provider: FakeProvider
) -> None:
    """The finish reason is out, the usage is not: it comes, and the client's leaving does not hide it."""
    async with edge.client() as client:
        # The provider writes the last event, usage and `[DONE]` at once; its bytes come one by one.
        client.send(chat("events=4&write=bytes&words=x", key=edge.key, stream=True))
        await client.until(b'"finish_reason":"stop"')
        client.close()
    call = await the_call(provider)
    record = await edge.record()
    assert (record.input_tokens, record.output_tokens, record.usage_source) == (11, 2, "provider")
    assert record.outcome in {"client_cancelled", "success"}
    await until(lambda: call.state != "open", 1)
    await quiet(edge)
    assert len(edge.records) == 1


async def test_waiting_for_usage_ends_when_it_does_not_come(edge: EdgeUnderTest, provider: FakeProvider) -> None:
    async with edge.client() as client:
        client.send(chat("events=4&silence_at=4&write=each", key=edge.key, stream=True))
        await client.until(b'"finish_reason":"stop"')
        client.close()
    call = await the_call(provider)
    await until(lambda: call.state == "cancelled", 1.5)
    record = await edge.record()
    assert (record.outcome, record.usage_source) == ("client_cancelled", "partial")
    assert record.input_tokens > 0
    assert record.output_tokens > 0


@pytest.mark.parametrize("stream", [True, False])
async def test_normal_end_is_no_disconnect(edge: EdgeUnderTest, stream: bool) -> None:
    """The client closes as soon as it has the last byte."""
    for number in range(5):
        async with edge.client() as client:
            await client.ask(chat(key=edge.key, stream=stream))
            client.close()
        record = await edge.record(number)
        assert (record.outcome, record.status, record.usage_source) == ("success", 200, "provider")
    await quiet(edge)
    assert len(edge.records) == 5


async def test_client_is_done_when_it_has_seen_done(edge: EdgeUnderTest, provider: FakeProvider) -> None:
    """SDKs close at `[DONE]`, before the body's last chunk."""
    async with edge.client() as client:
        client.send(chat("write=bytes&events=3", key=edge.key, stream=True))
        await client.until(b"[DONE]")
        client.reset()
    assert (await edge.record()).outcome == "success"
    await quiet(edge)
    assert len(edge.records) == 1


async def test_half_a_close_is_a_close(edge: EdgeUnderTest, provider: FakeProvider) -> None:
    async with edge.client() as client:
        client.send(chat("silence=request", key=edge.key))
        call = await the_call(provider)
        client.writer.write_eof()
        await until(lambda: call.state == "cancelled", 1)
        assert await client.is_closed_by_peer()
    assert (await edge.record()).outcome == "client_cancelled"


async def test_nothing_is_called_when_the_client_leaves_in_its_own_request(
    edge: EdgeUnderTest, provider: FakeProvider
) -> None:
    request = chat(key=edge.key)
    for size in (10, request.index(b"\r\n\r\n") + 2, len(request) - 5):
        async with edge.client() as client:
            client.send(request[:size])
            await until(lambda: edge.edge.metrics.open_connections == 1)
            await asyncio.sleep(0.02)
    await quiet(edge)
    assert provider.calls.total == 0
    # The last one had authenticated: it has its record.
    assert [record.outcome for record in edge.records] == ["client_cancelled"]
    assert edge.records[0].cost_nano_usd == 0


async def test_waiting_requests_are_forgotten_when_the_client_leaves(
    edge: EdgeUnderTest, provider: FakeProvider
) -> None:
    async with edge.client() as client:
        client.send(chat("silence=request", key=edge.key) + chat(key=edge.key) + chat(key=edge.key)[:-5])
        call = await the_call(provider)
        assert edge.edge.buffered_bytes > 0
        client.close()
        await until(lambda: call.state == "cancelled", 1)
    await quiet(edge)
    assert provider.calls.total == 1
    assert len(edge.records) == 1


async def test_call_is_cancelled_when_the_client_leaves_while_a_connection_is_opened(
    edge: EdgeUnderTest, provider: FakeProvider
) -> None:
    edge.put_provider(max_connections=1)
    async with edge.client() as first, edge.client() as second:
        first.send(chat("silence=request", key=edge.key))
        call = await the_call(provider)
        second.send(chat(key=edge.key))
        await until(lambda: len(edge.journal.admissions) == 2)
        second.close()
        record = await edge.record()
        assert (record.outcome, record.usage_source, record.cost_nano_usd) == ("client_cancelled", "none", 0)
        first.close()
        await until(lambda: call.state == "cancelled", 1)
    await quiet(edge)
    # The place in the pool is free again.
    async with edge.client() as client:
        assert (await client.ask(chat(key=edge.key))).status == 200
    assert provider.calls.total == 2


async def test_many_disconnects_leave_nothing_behind(edge: EdgeUnderTest, provider: FakeProvider) -> None:
    async def leave_after(delay_s: float) -> None:
        async with edge.client() as client:
            client.send(chat("events=20&pace_ms=1", key=edge.key, stream=True))
            await asyncio.sleep(delay_s)
            client.reset()

    await asyncio.gather(*(leave_after(number / 2_000) for number in range(60)))
    await quiet(edge)
    await until(lambda: provider.calls.open == 0, 1)
    assert len(edge.records) == len(edge.journal.admissions)
    assert len({record.request_id for record in edge.records}) == len(edge.records)
