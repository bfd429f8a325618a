"""When a feed calls itself ready and stale."""

import pytest

from sluicegate.bus.connection import Connection
from sluicegate.edge.mirrors.bucket import BucketName
from sluicegate.edge.mirrors.feed import STALE_AFTER_S, MirrorFeed


class FakeConnection(Connection):
    is_up = True

    @property
    def is_connected(self) -> bool:
        return self.is_up


class FakeView:
    def replace(self, bucket: BucketName, entries: dict[str, bytes]) -> None: ...
    def apply(self, bucket: BucketName, key: str, value: bytes | None) -> None: ...


@pytest.fixture
async def fresh_feed() -> MirrorFeed:
    feed = MirrorFeed(FakeConnection("fake"), FakeView(), "edge-1")
    for bucket in (feed._keys, feed._catalogue):
        bucket.is_loaded = True
        bucket._set_sure(7)
    return feed


async def test_feed_is_neither_ready_nor_fresh_before_it_read() -> None:
    feed = MirrorFeed(FakeConnection("fake"), FakeView(), "edge-1")
    assert not feed.is_ready
    assert feed.stale_reason == "keys: not read yet"


async def test_feed_is_ready_and_fresh_when_both_buckets_are(fresh_feed: MirrorFeed) -> None:
    assert fresh_feed.is_ready
    assert not fresh_feed.is_stale
    assert (fresh_feed.keys_sequence, fresh_feed.catalogue_sequence) == (7, 7)


async def test_feed_is_not_ready_when_one_bucket_is_not_read(fresh_feed: MirrorFeed) -> None:
    fresh_feed._catalogue.is_loaded = False
    assert not fresh_feed.is_ready


async def test_feed_is_stale_and_announces_nothing_when_in_doubt(fresh_feed: MirrorFeed) -> None:
    fresh_feed._catalogue.doubt("a reason")
    assert fresh_feed.stale_reason == "catalogue: a reason"
    assert fresh_feed.is_ready
    assert (fresh_feed.keys_sequence, fresh_feed.catalogue_sequence) == (7, 0)


async def test_feed_is_stale_when_nats_is_away(fresh_feed: MirrorFeed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeConnection, "is_up", False)
    assert fresh_feed.stale_reason == "NATS is away"


@pytest.mark.parametrize(("age_s", "is_stale"), [(STALE_AFTER_S - 1, False), (STALE_AFTER_S + 1, True)])
async def test_feed_is_stale_when_the_last_check_is_too_old(
    fresh_feed: MirrorFeed, age_s: float, is_stale: bool
) -> None:
    fresh_feed._keys.checked_at_s -= age_s
    assert fresh_feed.is_stale == is_stale
