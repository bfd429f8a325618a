"""Identifiers: opaque, sortable, safe in subjects and KV keys."""

import re
import uuid

from sluicegate.contracts import ids

NATS_TOKEN = re.compile(r"[-/_=a-zA-Z0-9]+")


def test_uuid7_is_one_by_rfc_9562() -> None:
    value = uuid.UUID(ids.uuid7_text(1_700_000_000_123_456))
    assert value.version == 7
    assert value.variant == uuid.RFC_4122
    assert value.int >> 80 == 1_700_000_000_123


def test_uuid7_begins_alike_when_made_in_the_same_microsecond() -> None:
    first, second = (ids.uuid7_text(1_700_000_000_123_456) for _ in range(2))
    assert first[:18] == second[:18]
    assert first != second


def test_uuid7_sorts_by_microsecond() -> None:
    texts = [ids.uuid7_text(1_700_000_000_000_000 + us) for us in range(3_000)]
    assert texts == sorted(texts)


def test_new_id_is_a_nats_token_with_its_prefix() -> None:
    new = ids.new_id("tea")
    assert new.startswith("tea_")
    assert ids.ID_PATTERN.fullmatch(new)
    assert NATS_TOKEN.fullmatch(new)


def test_new_ids_differ() -> None:
    assert len({ids.new_id("key") for _ in range(1_000)}) == 1_000


def test_new_id_keeps_all_bits_of_its_uuid() -> None:
    alphabet = "0123456789abcdefghjkmnpqrstvwxyz"
    value = 0
    for character in ids.new_id("key")[4:]:
        value = value * 32 + alphabet.index(character)
    assert uuid.UUID(int=value).version == 7
