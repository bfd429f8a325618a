"""The two halves of a record are the contract's events, field by field."""

import msgspec
import pytest

from sluicegate.contracts.catalogue import Key
from sluicegate.contracts.money import Price
from sluicegate.contracts.usage import Attempt, PriceOfInput, RequestAdmitted, UsageRecorded
from sluicegate.edge.mirrors.view import Principal
from sluicegate.edge.phases import records
from sluicegate.edge.phases.records import (
    Admission,
    Ending,
    admitted_record,
    clean_text,
    finished_record,
    pseudonym,
    shared_halves,
)

KEY = Key(id="key_1", name="k", tenant="ten_1", team="tea_1", department="dep_1", prefix="sgk_")
PRICE = Price(version=7, valid_from_us=0, input=11, output=13)


def _fields(type_: type[msgspec.Struct]) -> dict[str, tuple[object, object, object]]:
    return {field.name: (field.type, field.default, field.default_factory) for field in msgspec.structs.fields(type_)}


@pytest.mark.parametrize(
    ("own", "shared", "event"),
    [
        (Admission, records._AdmittedIdentity, RequestAdmitted),
        (Ending, records._FinishedIdentity, UsageRecorded),
    ],
)
def test_halves_are_the_event_field_by_field(
    own: type[msgspec.Struct], shared: type[msgspec.Struct], event: type[msgspec.Struct]
) -> None:
    one, other, whole = _fields(own), _fields(shared), _fields(event)
    assert not one.keys() & other.keys()
    assert one.keys() | other.keys() == whole.keys()
    for name, wanted in whole.items():
        given = one.get(name) or other[name]
        is_required = wanted[1] is msgspec.NODEFAULT and wanted[2] is msgspec.NODEFAULT
        # A required field of the own half has an empty default, which is never sent: the phases fill it in.
        assert given == wanted or (is_required and name in one), name


def test_records_say_all_that_was_filled_in() -> None:
    principal = Principal(KEY)
    halves = shared_halves(principal, "chat.completions", "demo", None, PRICE, "edge-1")
    admission = Admission(request_id="r", started_at_us=5, streamed=True, input_tokens=3, end_user="u")
    assert msgspec.json.decode(admitted_record(admission, halves), type=RequestAdmitted) == RequestAdmitted(
        request_id="r", started_at_us=5, tenant="ten_1", team="tea_1", key="key_1", endpoint="chat.completions",
        department="dep_1", requested_model="demo", streamed=True, input_tokens=3,
        price=PriceOfInput(version=7, input=11), end_user="u", edge="edge-1",
    )  # fmt: skip
    attempts = (Attempt(provider="p", status=500, started_us=1, first_byte_us=None, end_us=2),)
    ending = Ending(
        request_id="r", started_at_us=5, status=200, outcome="success", attempts=attempts, output_tokens=9,
        usage_source="provider", cost_nano_usd=0, cost_source="priced", duration_us=8, traceparent="t",
    )  # fmt: skip
    assert msgspec.json.decode(finished_record(ending, halves), type=UsageRecorded) == UsageRecorded(
        request_id="r", started_at_us=5, tenant="ten_1", team="tea_1", key="key_1", endpoint="chat.completions",
        department="dep_1", requested_model="demo", status=200, outcome="success", attempts=attempts,
        output_tokens=9, usage_source="provider", cost_nano_usd=0, cost_source="priced", price_version=7,
        duration_us=8, edge="edge-1", traceparent="t",
    )  # fmt: skip


def test_halves_of_names_that_lead_nowhere_are_not_kept() -> None:
    principal = Principal(KEY)
    for number in range(3):
        shared_halves(principal, "chat.completions", f"guess-{number}", None, None, "edge-1")
    assert not principal.shared_halves


@pytest.mark.parametrize(
    ("text", "expected"),
    [("demo", "demo"), ("a\0b", "ab"), ("\ud800x", "x"), ("é" * 200, "é" * 128), ("a" * 300, "a" * 256)],
)
def test_text_is_cleaned_before_it_is_stored(text: str, expected: str) -> None:
    assert clean_text(text) == expected


def test_pseudonym_differs_between_tenants_and_takes_any_text() -> None:
    assert pseudonym("ann", "ten_1") == pseudonym("ann", "ten_1") != pseudonym("ann", "ten_2")
    assert pseudonym("\ud800", "ten_1") != pseudonym("ann", "ten_1")
