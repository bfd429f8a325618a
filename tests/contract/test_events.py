"""Events and records on the wire: arrays of JSON, read by older and newer readers alike."""

import msgspec
import pytest

from sluicegate.contracts import catalogue, events, facts, subjects, usage
from sluicegate.contracts.schemas import event_type

EVENT = usage.UsageRecorded(
    request_id="018bcfe5-687b-774b-982a-9a9a9115d2cd",
    started_at_us=1,
    tenant="ten_1",
    team="tea_1",
    key="key_1",
    endpoint="chat.completions",
    status=200,
    outcome="success",
)


def test_message_is_an_array_of_its_events() -> None:
    message = events.join_events([events.encode_event(EVENT), events.encode_event(EVENT)])
    assert msgspec.json.decode(message, type=list[usage.UsageRecorded]) == [EVENT, EVENT]


def test_message_of_no_events_is_an_empty_array() -> None:
    assert events.join_events([]) == b"[]"


def test_usage_event_leaves_defaults_out() -> None:
    assert b"guard" not in events.encode_event(EVENT)


def test_reader_ignores_a_field_it_does_not_know() -> None:
    newer = events.encode_event(EVENT)[:-1] + b',"region":"eu"}'
    assert msgspec.json.decode(newer, type=usage.UsageRecorded) == EVENT


def test_reader_refuses_an_outcome_it_does_not_know() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(events.encode_event(EVENT).replace(b'"success"', b'"lucky"'), type=usage.UsageRecorded)


def test_stored_places_of_enumerations_do_not_move() -> None:
    """The database holds these as numbers: a new one goes to the end."""
    assert usage.OUTCOMES[:9] == (
        "success",
        "client_cancelled",
        "stream_interrupted",
        "interrupted",
        "provider_error",
        "rate_limited",
        "budget_exceeded",
        "guard_blocked",
        "rejected",
    )
    assert usage.USAGE_SOURCES[:4] == ("provider", "estimated", "partial", "none")
    assert usage.COST_SOURCES[:2] == ("priced", "unpriced")


def test_every_event_of_the_table_is_frozen() -> None:
    assert all(event_type(event).__struct_config__.frozen for event in subjects.EVENTS)


def test_dead_letter_keeps_bytes_that_are_no_text() -> None:
    letter = facts.DeadLettered(
        event_id="evt_1",
        at_us=1,
        room="usage-writer",
        stream="USAGE",
        subject="gateway.request.completed.ten_1",
        sequence=7,
        index=0,
        reason="does not decode",
        payload=b"\xff\x00",
    )
    assert msgspec.json.decode(events.encode_event(letter), type=facts.DeadLettered) == letter


def test_catalogue_record_survives_the_wire() -> None:
    sealed = catalogue.SealedSecret(key_id="k1", nonce=b"\x00" * 12, ciphertext=b"\xff" * 20)
    provider = catalogue.Provider(id="prv_1", name="main", base_url="http://localhost/v1", credential=sealed)
    assert msgspec.json.decode(msgspec.json.encode(provider), type=catalogue.RECORD_TYPES["provider"]) == provider
