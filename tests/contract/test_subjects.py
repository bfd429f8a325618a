"""The tables of subjects, streams, consumers and buckets agree with each other and with NATS."""

import re
from fnmatch import fnmatchcase

import pytest

from sluicegate.contracts import subjects

STREAM_NAME = re.compile(r"[A-Z]+")
BUCKET_NAME = re.compile(r"[-_a-zA-Z0-9]+")


def streams_of(subject: str) -> list[str]:
    """Return the streams that keep a subject."""
    return [row.name for row in subjects.STREAMS if any(fnmatchcase(subject, pattern) for pattern in row.subjects)]


def example(event: subjects.Event) -> str:
    """Return a subject as it is really published."""
    return re.sub(r"<\w+>", "x", event.subject)


@pytest.mark.parametrize("event", subjects.EVENTS, ids=lambda event: event.schema)
def test_event_is_kept_by_the_stream_it_names(event: subjects.Event) -> None:
    assert streams_of(example(event)) == ([event.stream] if event.stream else [])


@pytest.mark.parametrize("event", subjects.EVENTS, ids=lambda event: event.schema)
def test_event_schema_names_a_version(event: subjects.Event) -> None:
    assert re.fullmatch(r"[a-z]+\.[a-z]+\.v\d+", event.schema)


def test_event_schemas_are_unique() -> None:
    assert len({event.schema for event in subjects.EVENTS}) == len(subjects.EVENTS)


@pytest.mark.parametrize("consumer", subjects.CONSUMERS, ids=lambda consumer: consumer.durable)
def test_consumer_filters_what_its_stream_keeps(consumer: subjects.Consumer) -> None:
    assert streams_of(consumer.filter_subject.replace("*", "x")) == [consumer.stream]


def test_names_are_valid_for_nats() -> None:
    assert all(STREAM_NAME.fullmatch(row.name) for row in subjects.STREAMS)
    assert all(BUCKET_NAME.fullmatch(row.name) for row in subjects.BUCKETS)
