"""What is asked of the server for each stream, bucket and consumer."""

from nats.js.api import StreamConfig

from sluicegate.bus.declaration import (
    _bucket_settings,
    _consumer_settings,
    _drift,
    _stream_settings,
    bucket_stream_name,
)
from sluicegate.contracts import subjects
from sluicegate.contracts.subjects import Bucket


def test_every_stream_discards_new_so_that_nothing_is_forgotten() -> None:
    for stream in subjects.STREAMS:
        settings = _stream_settings(stream, replicas=3)
        assert (settings["discard"], settings["num_replicas"]) == ("new", 3)


def test_duplicate_window_of_a_bucket_is_never_longer_than_its_entries_live() -> None:
    """The server refuses the stream otherwise."""
    windows = {ttl: Bucket(name="b", description="", ttl_s=ttl) for ttl in (None, 30.0, 600.0)}
    assert {ttl: _bucket_settings(bucket, 1)["duplicate_window"] for ttl, bucket in windows.items()} == {
        None: 120.0,
        30.0: 30.0,
        600.0: 120.0,
    }


def test_bucket_lies_in_the_stream_that_nats_expects() -> None:
    settings = _bucket_settings(subjects.KEYS_BUCKET, 1)
    assert settings["name"] == bucket_stream_name("sluicegate-keys") == "KV_sluicegate-keys"
    assert settings["subjects"] == ["$KV.sluicegate-keys.>"]


def test_consumers_redeliver_without_end() -> None:
    for consumer in subjects.CONSUMERS:
        settings = _consumer_settings(consumer)
        assert (settings["ack_policy"], settings["max_deliver"]) == ("explicit", -1)


def test_drift_names_only_what_differs_of_what_we_set() -> None:
    wanted = _stream_settings(subjects.USAGE, 1)
    same = StreamConfig(**wanted).evolve(max_msg_size=4096)
    assert _drift(wanted, same) == {}
    assert _drift(wanted, same.evolve(max_age=1.0)) == {"max_age": subjects.USAGE.max_age_s}
