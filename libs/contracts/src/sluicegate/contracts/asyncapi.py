"""The AsyncAPI 3 document of the bus, made from the subject table. Development only."""

import re
from typing import Any, Final

import msgspec

from sluicegate.contracts import facts, subjects
from sluicegate.contracts.schemas import event_type

_PLACEHOLDER: Final = re.compile(r"<(\w+)>")
_SCHEMAS: Final = "#/components/schemas/{name}"
_SPENT: Final = "budget.spent"


def _reference(path: str) -> dict[str, str]:
    return {"$ref": path}


def _message(event: subjects.Event) -> dict[str, Any]:
    one = _reference(_SCHEMAS.format(name=event.type_name))
    return {
        "name": event.schema,
        "title": event.type_name,
        "summary": event.meaning,
        "contentType": "application/json",
        "headers": {
            "type": "object",
            "properties": {
                subjects.HEADER_SCHEMA: {"const": event.schema},
                subjects.HEADER_MESSAGE_ID: {
                    "type": "string",
                    "description": "Names the message; a repeat has the same.",
                },
            },
        },
        "payload": {"type": "array", "items": one} if event.is_batch else one,
    }


def _channel(event: subjects.Event) -> dict[str, Any]:
    channel: dict[str, Any] = {
        "address": _PLACEHOLDER.sub(r"{\1}", event.subject),
        "title": event.meaning,
        "description": f"From {event.publisher} to {event.consumers}. "
        + (f"Kept in stream {event.stream}." if event.stream else "Not kept."),
        "messages": {event.schema: _reference(f"#/components/messages/{event.schema}")},
    }
    if parameters := _PLACEHOLDER.findall(event.subject):
        channel["parameters"] = {name: {"description": f"Id or word: {name}."} for name in parameters}
    return channel


def _operation(event: subjects.Event) -> dict[str, Any]:
    return {
        "action": "send",
        "channel": _reference(f"#/channels/{event.schema}"),
        "summary": event.meaning,
        "messages": [_reference(f"#/channels/{event.schema}/messages/{event.schema}")],
    }


def asyncapi_document() -> dict[str, Any]:
    """Return the document, from the side of Sluicegate: it sends events and answers one question."""
    events = subjects.EVENTS
    types = [event_type(event) for event in events] + [facts.SpentQuestion, facts.SpentAnswer]
    _, schemas = msgspec.json.schema_components(types, ref_template=_SCHEMAS)
    spent_messages = {
        name: {
            "name": f"{_SPENT}.{name}",
            "contentType": "application/json",
            "payload": _reference(_SCHEMAS.format(name=type_.__name__)),
        }
        for name, type_ in (("question", facts.SpentQuestion), ("answer", facts.SpentAnswer))
    }
    question_channel: dict[str, Any] = {"address": subjects.RPC_BUDGET_SPENT}
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Sluicegate events",
            "version": "1",
            "description": "What Sluicegate publishes on NATS. A message holds a JSON array of events of one type, "
            "unless said otherwise. Readers ignore fields that they do not know.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": {
            **{event.schema: _channel(event) for event in events},
            f"{_SPENT}.question": question_channel
            | {"messages": {"question": _reference(f"#/components/messages/{_SPENT}.question")}},
            f"{_SPENT}.answer": {"address": None}
            | {"messages": {"answer": _reference(f"#/components/messages/{_SPENT}.answer")}},
        },
        "operations": {
            **{event.schema: _operation(event) for event in events},
            _SPENT: {
                "action": "receive",
                "summary": "How much did a scope spend? Answered by usage-writer over request/reply.",
                "channel": _reference(f"#/channels/{_SPENT}.question"),
                "reply": {
                    "address": {"location": "$message.header#/replyTo"},
                    "channel": _reference(f"#/channels/{_SPENT}.answer"),
                },
            },
        },
        "components": {
            "messages": {
                **{event.schema: _message(event) for event in events},
                **{f"{_SPENT}.{name}": message for name, message in spent_messages.items()},
            },
            "schemas": schemas,
        },
    }
