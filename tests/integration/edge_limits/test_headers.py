"""What each answer says of limits: `x-ratelimit-*` in OpenAI's form, and a warning when a soft budget is exceeded."""

import asyncio
import re
from typing import Any

import openai
import pytest

from sluicegate.devstack.fake_provider.server import FakeProvider, running
from sluicegate.devstack.limited_edge import ANSWER_TOKENS, BUDGET_SCOPES, SCOPES, LimitedEdge, LimitedScope
from sluicegate.devstack.raw_http import Response

SMALL: dict[str, Any] = {"max_tokens": 10, "user": "ann"}
WARNING = "x-sluicegate-warning"
# OpenAI writes times as `1s`, `6m0s`, `250ms`.
TIME = re.compile(r"(\d+h)?(\d+m)?\d+(\.\d+)?(ms|s)")


def limits_of(response: Response, kind: str) -> tuple[int, int]:
    """Limit and remainder as the answer tells them; its reset must be a time."""
    assert TIME.fullmatch(response.header(f"x-ratelimit-reset-{kind}") or "")
    limit, remaining = (response.header(f"x-ratelimit-{field}-{kind}") for field in ("limit", "remaining"))
    assert limit is not None
    assert remaining is not None
    return int(limit), int(remaining)


async def test_every_kind_of_answer_tells_where_the_client_stands(limited: LimitedEdge) -> None:
    """JSON, a stream, a provider's own refusal, a failed provider, a stream that breaks: each counts one request."""
    limited.limit("key", requests_per_minute=100, tokens_per_minute=100_000)
    requests = 100
    tokens = 100_000
    for fake, fields, status, used in (
        ("", {}, 200, ANSWER_TOKENS),
        ("events=5", {"stream": False}, 200, 11 + 3),
        ("status=422", {}, 422, 0),
        ("status=500", {}, 502, 0),
        ("status=429", {}, 429, 0),
        ("status=401", {}, 502, 0),
        ("garbage=json", {}, 502, 0),
        ("cut_head=1", {}, 502, 0),
        ("cut_head=1", {"stream": True}, 502, 0),
    ):
        response = await limited.ask(fake, **{**SMALL, **fields})
        assert response.status == status, fake
        requests -= 1
        tokens -= used
        assert limits_of(response, "requests") == (100, requests), fake
        assert limits_of(response, "tokens") == (100_000, tokens), fake


async def test_stream_tells_what_is_left_with_all_that_it_may_use(limited: LimitedEdge) -> None:
    """Its head leaves before its usage is known: the reservation counts, and comes back at its end."""
    limited.limit("key", requests_per_minute=100, tokens_per_minute=100_000)
    for fake in ("write=each", "cut_at=4&write=each&events=9"):
        before = limited.meters()["tokens", "key"].remaining()
        response = await limited.ask(fake, stream=True, **SMALL)
        assert response.header("content-type") == "text/event-stream; charset=utf-8"
        reserved = limited.edge.journal.admissions[-1].input_tokens + 10
        assert limits_of(response, "tokens") == (100_000, before - reserved)
        record = limited.edge.records[-1]
        assert limited.meters()["tokens", "key"].remaining() == before - record.input_tokens - record.output_tokens


async def test_refusals_tell_where_the_client_stands(limited: LimitedEdge) -> None:
    limited.limit("key", requests_per_minute=2, tokens_per_minute=80)
    assert await limited.statuses(2, **SMALL) == [200, 200]
    by_requests = await limited.ask(**SMALL)
    assert (by_requests.status, limits_of(by_requests, "requests")) == (429, (2, 0))
    assert limits_of(by_requests, "tokens") == (80, 80 - 2 * ANSWER_TOKENS)
    limited.limit("key", requests_per_minute=9)
    by_tokens = await limited.ask(**SMALL)
    assert (by_tokens.status, limits_of(by_tokens, "requests")) == (429, (9, 7))
    limited.limit("key", tokens_per_minute=1_000)
    assert (await limited.ask(**SMALL)).status == 200
    limited.budget("key", 10)
    by_budget = await limited.ask(**SMALL)
    assert (by_budget.status, limits_of(by_budget, "requests")) == (402, (9, 6))
    assert limits_of(by_budget, "tokens") == (1_000, 1_000 - 3 * ANSWER_TOKENS)
    limited.edge.journal.is_full = True
    assert (await limited.ask(**SMALL)).status == 503


async def test_the_tightest_limit_of_each_kind_is_told(limited: LimitedEdge) -> None:
    for number, scope in enumerate(SCOPES):
        limited.limit(scope, requests_per_minute=100 + number, tokens_per_minute=10_000 + number)
    for scope in SCOPES:
        limited.limit(scope, requests_per_minute=50, tokens_per_minute=5_000)
        response = await limited.ask(**SMALL)
        assert limits_of(response, "requests")[0] == 50, scope
        assert limits_of(response, "tokens")[0] == 5_000, scope
        limited.limit(scope, requests_per_minute=200, tokens_per_minute=20_000)


async def test_only_what_is_limited_is_told(limited: LimitedEdge) -> None:
    limited.limit("team", tokens_per_minute=1_000)
    names = [name for name, _ in (await limited.ask(**SMALL)).headers if name.startswith("x-ratelimit")]
    assert names == ["x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"]
    limited.limit("team", tokens_per_minute=None, open_requests=5)
    limited.budget("team", 1_000_000_000)
    assert not [name for name, _ in (await limited.ask(**SMALL)).headers if name.startswith("x-ratelimit")]


async def test_the_providers_own_limits_never_reach_the_client(limited: LimitedEdge) -> None:
    """A real provider would tell ours, not the client's; the fake one is a server of the test's own."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = b'{"usage":{"prompt_tokens":1,"completion_tokens":1}}'
        head = b"HTTP/1.1 200 OK\r\nx-ratelimit-remaining-requests: 7777\r\nx-ratelimit-limit-requests: 8888\r\n"
        writer.write(head + b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        limited.edge.put_provider(base_url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")
        limited.limit("key", requests_per_minute=100)
        assert limits_of(await limited.ask(**SMALL), "requests") == (100, 99)
        limited.limit("key", requests_per_minute=None)
        assert (await limited.ask(**SMALL)).header("x-ratelimit-remaining-requests") is None


async def test_limits_of_the_target_that_answered_are_told(limited: LimitedEdge) -> None:
    async with running() as other:
        limited.edge.put_provider("prv_2", base_url=other.url + "/v1")
        limited.edge.put_model("demo", providers=("prv_1", "prv_2"))
        limited.limit("provider", requests_per_minute=1)
        assert limits_of(await limited.ask(**SMALL), "requests") == (1, 0)
        served = await limited.ask(**SMALL)
        assert (served.status, served.header("x-sluicegate-fallbacks")) == (200, "1")
        assert served.header("x-ratelimit-limit-requests") is None


# Soft budgets


async def test_exceeded_soft_budget_serves_with_a_warning_on_every_scope(limited: LimitedEdge) -> None:
    for scope in BUDGET_SCOPES:
        budget = limited.budget(scope, 60_000, is_soft=True)
        responses = [await limited.ask(stream=stream, **SMALL) for stream in (False, False, True, False)]
        assert [response.status for response in responses] == [200] * 4, scope
        # Each answer costs 41 000: the second one has exceeded the budget when it leaves.
        assert [response.header(WARNING) for response in responses] == [None] + ["budget_soft_exceeded"] * 3, scope
        limited.edge.remove(f"budget.{budget.id}")


async def test_warning_stands_there_once_whatever_is_exceeded(limited: LimitedEdge) -> None:
    for scope in BUDGET_SCOPES:
        limited.budget(scope, 1, is_soft=True)
    assert (await limited.ask(**SMALL)).status == 200
    assert (await limited.ask(**SMALL)).header(WARNING) == "budget_soft_exceeded"
    for fake, status in (("status=422", 422), ("status=500", 502)):
        response = await limited.ask(fake, **SMALL)
        assert (response.status, response.header(WARNING)) == (status, "budget_soft_exceeded")


async def test_soft_budget_of_zero_serves_with_a_warning_from_the_start(limited: LimitedEdge) -> None:
    limited.budget("key", 0, is_soft=True)
    first = await limited.ask(**SMALL)
    assert (first.status, first.header(WARNING)) == (200, "budget_soft_exceeded")


async def test_hard_budget_beside_a_soft_one_still_refuses(limited: LimitedEdge) -> None:
    limited.budget("key", 10, is_soft=True)
    limited.budget("team", 110_000)
    responses = [await limited.ask(**SMALL) for _ in range(3)]
    assert [response.status for response in responses] == [200, 200, 402]
    assert responses[2].header(WARNING) == "budget_soft_exceeded"


# The official SDK


def sdk(limited: LimitedEdge, retries: int) -> openai.AsyncOpenAI:
    url = f"http://127.0.0.1:{limited.edge.port}/v1"
    return openai.AsyncOpenAI(api_key=limited.edge.key, base_url=url, max_retries=retries)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("scope", "limits"), [("key", {"requests_per_minute": 1}), ("provider", {"requests_per_minute": 1})]
)
async def test_openai_sdk_sees_a_rate_limit_error_with_the_headers(
    limited: LimitedEdge, stream: bool, scope: LimitedScope, limits: dict[str, int]
) -> None:
    limited.limit(scope, **limits)
    async with sdk(limited, retries=0) as client:
        messages: Any = [{"role": "user", "content": "Hello"}]
        raw = await client.chat.completions.with_raw_response.create(model="demo", messages=messages)
        assert raw.headers["x-ratelimit-limit-requests"] == "1"
        assert raw.headers["x-ratelimit-remaining-requests"] == "0"
        with pytest.raises(openai.RateLimitError) as caught:
            await client.chat.completions.create(model="demo", messages=messages, stream=stream)
    error = caught.value
    assert (error.code, error.type) == ("rate_limit_exceeded", "rate_limit_error")
    assert error.response.headers["x-ratelimit-limit-requests"] == "1"
    assert error.response.headers["x-ratelimit-remaining-requests"] == "0"
    assert int(error.response.headers["retry-after"]) > 0
    assert error.request_id == limited.edge.records[-1].request_id


async def test_openai_sdk_does_not_retry_what_cannot_succeed(limited: LimitedEdge, provider: FakeProvider) -> None:
    """A final 402, a limit of 0, a request larger than its limit: one request each, though the SDK may retry."""
    messages: Any = [{"role": "user", "content": "Hello"}]
    async with sdk(limited, retries=5) as client:
        budget = limited.budget("key", 10)
        with pytest.raises(openai.APIStatusError) as caught:
            await client.chat.completions.create(model="demo", messages=messages)
        assert (caught.value.status_code, caught.value.code) == (402, "budget_exceeded")
        limited.edge.remove(f"budget.{budget.id}")
        for limits in ({"requests_per_minute": 0}, {"tokens_per_minute": 100}):
            limited.limit("key", **limits)
            with pytest.raises(openai.RateLimitError):
                await client.chat.completions.create(model="demo", messages=messages)
            limited.limit("key", **dict.fromkeys(limits))
    assert [record.status for record in limited.edge.records] == [402, 429, 429]
    assert provider.calls.total == 0


async def test_openai_sdk_comes_back_when_only_open_requests_are_in_the_way(
    limited: LimitedEdge, provider: FakeProvider
) -> None:
    """402 with `x-should-retry: true`: the SDK waits as told, and the money is there then."""
    messages: Any = [{"role": "user", "content": "Hello"}]
    limited.budget("key", 110_000)
    async with sdk(limited, retries=5) as client:
        extra = {"fake": "gate_at=2&write=each"}
        stream = await client.chat.completions.create(
            model="demo", messages=messages, max_tokens=10, stream=True, extra_body=extra
        )
        second = limited.edge.edge.loop.create_task(
            client.chat.completions.create(model="demo", messages=messages, max_tokens=10)
        )
        await limited.edge.record()
        assert limited.edge.records[0].error_code == "budget_exceeded"
        provider.release()
        async for _ in stream:
            pass
        assert (await second).choices
    assert [record.status for record in limited.edge.records] == [402, 200, 200]
