"""The real `openai` SDK, sync and async, against the running stack: it must notice nothing."""

from collections.abc import Iterator

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionFunctionToolParam, ChatCompletionMessage, ChatCompletionMessageParam

from sluicegate.devstack.stack_client import Stack

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "How does water flow?"}]
TOOL: ChatCompletionFunctionToolParam = {
    "type": "function",
    "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}},
}


def _calls(message: ChatCompletionMessage) -> list[tuple[str, str]]:
    calls = message.tool_calls or []
    return [(call.function.name, call.function.arguments) for call in calls if call.type == "function"]


@pytest.fixture
def client(stack: Stack) -> Iterator[OpenAI]:
    with OpenAI(base_url=stack.openai_base_url, api_key=stack.key, max_retries=0) as client:
        yield client


def test_chat_answers_with_text_and_usage(client: OpenAI, stack: Stack) -> None:
    answer = client.chat.completions.create(model=stack.model, messages=MESSAGES)

    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer._request_id


def test_stream_brings_every_word_and_no_usage_chunk_when_not_asked_for(client: OpenAI, stack: Stack) -> None:
    whole = client.chat.completions.create(model=stack.model, messages=MESSAGES).choices[0].message.content

    chunks = list(client.chat.completions.create(model=stack.model, messages=MESSAGES, stream=True))

    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert [chunk for chunk in chunks if chunk.usage is not None] == []


def test_stream_ends_with_one_usage_chunk_when_asked_for(client: OpenAI, stack: Stack) -> None:
    chunks = list(
        client.chat.completions.create(
            model=stack.model, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
    )

    with_usage = [chunk for chunk in chunks if chunk.usage is not None]
    assert with_usage == chunks[-1:]
    assert with_usage[0].choices == []
    assert with_usage[0].usage is not None
    assert with_usage[0].usage.completion_tokens > 0


def test_tool_calls_arrive_whole_and_under_their_indexes_when_streamed(client: OpenAI, stack: Stack) -> None:
    extra = {"fake": "tools=2"}
    whole = client.chat.completions.create(model=stack.model, messages=MESSAGES, tools=[TOOL], extra_body=extra)
    expected = _calls(whole.choices[0].message)
    assert len(expected) == 2

    with client.chat.completions.stream(model=stack.model, messages=MESSAGES, tools=[TOOL], extra_body=extra) as stream:
        message = stream.get_final_completion().choices[0].message

    assert _calls(message) == expected


async def test_async_client_streams_and_answers(stack: Stack) -> None:
    async with AsyncOpenAI(base_url=stack.openai_base_url, api_key=stack.key, max_retries=0) as client:
        answer = await client.chat.completions.create(model=stack.model, messages=MESSAGES)
        stream = await client.chat.completions.create(model=stack.model, messages=MESSAGES, stream=True)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    assert text == answer.choices[0].message.content


@pytest.mark.parametrize("prefix", ["/v1", "", "/openai/v1"])
def test_every_alias_of_the_base_url_works(stack: Stack, prefix: str) -> None:
    with OpenAI(base_url=stack.edge_url + prefix, api_key=stack.key, max_retries=0) as client:
        assert client.chat.completions.create(model=stack.model, messages=MESSAGES).choices
        assert stack.model in [model.id for model in client.models.list()]
        assert client.models.retrieve(stack.model).object == "model"


def test_models_tell_their_type_and_abilities(client: OpenAI, stack: Stack) -> None:
    (model,) = (model for model in client.models.list() if model.id == stack.model)

    assert model.created > 0
    assert model.owned_by
    assert model.model_extra is not None
    assert model.model_extra["model_type"] == "chat"
    assert isinstance(model.model_extra["capabilities"], list)


def test_wrong_key_raises_authentication_error_with_a_code(stack: Stack) -> None:
    with (
        OpenAI(base_url=stack.openai_base_url, api_key="sgk_wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError) as caught,
    ):
        client.chat.completions.create(model=stack.model, messages=MESSAGES)

    assert caught.value.code == "invalid_key"
    assert caught.value.request_id


def test_unknown_model_raises_not_found_that_names_it(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="no-such-model", messages=MESSAGES)

    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"
    assert "no-such-model" in caught.value.message


def test_providers_own_refusal_of_the_request_passes_as_it_is(client: OpenAI, stack: Stack) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model=stack.model, messages=MESSAGES, extra_body={"fake": "status=400&code=context_length_exceeded"}
        )

    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("fake", "error", "code"),
    [
        ("status=429&retry_after=7", openai.RateLimitError, "provider_rate_limited"),
        ("status=401", openai.InternalServerError, "provider_error"),
        ("status=500", openai.InternalServerError, "provider_error"),
    ],
)
def test_providers_fault_raises_the_sdks_own_error(
    client: OpenAI, stack: Stack, fake: str, error: type[openai.APIStatusError], code: str
) -> None:
    with pytest.raises(error) as caught:
        client.chat.completions.create(model=stack.model, messages=MESSAGES, extra_body={"fake": fake})

    assert caught.value.code == code
    if code == "provider_rate_limited":
        assert caught.value.response.headers["retry-after"] == "7"


def test_sdk_gets_its_answer_by_retrying_when_the_provider_failed_once(stack: Stack) -> None:
    with OpenAI(base_url=stack.openai_base_url, api_key=stack.key, max_retries=1) as client:
        answer = client.chat.completions.create(
            model=stack.model, messages=MESSAGES, extra_body={"fake": "status=503&fail_first=1&words=once|more"}
        )

    assert answer.choices[0].message.content


def test_broken_stream_raises_after_the_words_that_came(client: OpenAI, stack: Stack) -> None:
    words = []
    with pytest.raises(openai.APIError) as caught:
        words += [
            chunk.choices[0].delta.content
            for chunk in client.chat.completions.create(
                model=stack.model, messages=MESSAGES, stream=True, extra_body={"fake": "cut_at=5&write=each&pace_ms=5"}
            )
        ]

    assert caught.value.code == "stream_interrupted"
    assert caught.value.type == "upstream_stream_error"


def test_gateway_key_never_reaches_the_provider(client: OpenAI, stack: Stack) -> None:
    marker = "the gateway key stays here"
    client.chat.completions.create(model=stack.model, messages=[{"role": "user", "content": marker}])

    requests = httpx.get(f"{stack.provider_url}/_fake/requests?last=200").text

    assert marker in requests
    assert stack.key not in requests
