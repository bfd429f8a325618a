"""The feed of the mirrors against a real NATS that restarts, forgets, freezes and loses messages."""

import asyncio
import random
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.kv import KeyValue

from sluicegate.bus.connection import Connection, connect
from sluicegate.bus.declaration import bucket_stream_name, declare
from sluicegate.contracts.catalogue import META_COMPLETE
from sluicegate.contracts.facts import InvalidationApplied
from sluicegate.contracts.subjects import BUCKETS, CATALOGUE_BUCKET, INVALIDATION_APPLIED, KEYS_BUCKET
from sluicegate.devstack.servers import NatsServer
from sluicegate.edge.metrics import Metrics
from sluicegate.edge.mirrors.bucket import RESUME_WITHIN_S, BucketName
from sluicegate.edge.mirrors.feed import MirrorFeed

DEADLINE_S = 40.0
CHECK_EVERY_S = 0.2
META = b'{"count":0,"at_us":0}'

OwnNats = Callable[[], NatsServer]


class FakeView:
    """Holds what it is fed, and what it held after each step."""

    def __init__(self) -> None:
        self.buckets: dict[BucketName, dict[str, bytes]] = {"keys": {}, "catalogue": {}}
        self.smallest = 0
        self.fails_on = b""

    @property
    def keys(self) -> dict[str, bytes]:
        return self.buckets["keys"]

    def replace(self, bucket: BucketName, entries: dict[str, bytes]) -> None:
        self.buckets[bucket] = dict(entries)

    def apply(self, bucket: BucketName, key: str, value: bytes | None) -> None:
        if value is not None and value == self.fails_on:
            raise RuntimeError("a record that the view chokes on")
        if value is None:
            self.buckets[bucket].pop(key, None)
        else:
            self.buckets[bucket][key] = value


class Relay:
    """The other side: writes both buckets, and knows what is in them."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.js: JetStreamContext = connection.jetstream(timeout=5)

    async def bucket(self, name: str = KEYS_BUCKET.name) -> KeyValue:
        return await self.js.key_value(name)

    async def declare(self) -> None:
        await declare(self.js, streams=(), consumers=())

    async def put(self, key: str, value: bytes, bucket: str = KEYS_BUCKET.name) -> int:
        return (await self.js.publish(f"$KV.{bucket}.{key}", value)).seq

    async def complete(self) -> None:
        for bucket in BUCKETS:
            await self.put(META_COMPLETE, META, bucket.name)

    async def remake(self) -> None:
        for bucket in BUCKETS:
            await self.js.delete_stream(bucket_stream_name(bucket.name))
        await self.declare()

    async def keys(self) -> dict[str, bytes]:
        """What a reader who starts now would find."""
        found = {}
        watcher = await (await self.bucket()).watchall(ignore_deletes=True)
        async for entry in watcher:
            if entry is None:
                break
            if entry.key != META_COMPLETE:
                found[entry.key] = entry.value or b""
        await watcher.stop()  # type: ignore[no-untyped-call]
        return found


async def eventually(condition: Callable[[], bool], explain: Callable[[], object] = lambda: "") -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, explain()
        await asyncio.sleep(0.01)


class Running:
    """A feed that runs, its connection, and its view."""

    def __init__(self, connection: Connection, check_every_s: float) -> None:
        self.connection = connection
        self.view = FakeView()
        self.feed = MirrorFeed(connection, self.view, "edge-1", check_every_s=check_every_s)

    async def fresh(self) -> None:
        await eventually(lambda: self.feed.is_ready and not self.feed.is_stale, lambda: self.feed.stale_reason)

    async def equals(self, relay: Relay) -> None:
        """Wait until the view holds what the bucket does, and is sure of it."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            await self.fresh()
            expected = await relay.keys()
            if self.view.keys == expected and not self.feed.is_stale:
                return
            assert time.monotonic() < deadline, (self.view.keys, expected)
            await asyncio.sleep(0.05)

    @property
    def full_reads(self) -> int:
        return self.feed._keys.full_reads


async def restarted(nats: NatsServer, *connections: Connection, restart: Callable[[], None] | None = None) -> None:
    """Restart the server and wait until all have noticed: what is sent before that is lost."""
    before = [connection.stats["reconnects"] for connection in connections]
    (restart or nats.restart)()
    for connection, count in zip(connections, before, strict=True):
        await eventually(lambda c=connection, n=count: c.stats["reconnects"] > n and c.is_connected)  # type: ignore[misc]


@asynccontextmanager
async def relaying(url: str) -> AsyncIterator[Relay]:
    connection = await connect(url, name="relay")
    try:
        yield Relay(connection)
    finally:
        await connection.close()


def relay_now(url: str, write: Callable[[Relay], Awaitable[None]]) -> None:
    """Write from a loop of its own while the test's loop, with the feed on it, stands still."""

    async def run() -> None:
        async with relaying(url) as relay:
            await write(relay)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: asyncio.run(run())).result()


@asynccontextmanager
async def feeding(url: str, *, check_every_s: float = CHECK_EVERY_S) -> AsyncIterator[Running]:
    """Run a feed; as in the edge, the connection is opened on the side."""
    connection = Connection("edge")
    running = Running(connection, check_every_s)
    opening = asyncio.create_task(connection.open(url))
    task = asyncio.create_task(running.feed.run())
    try:
        yield running
        assert not task.done(), task
    finally:
        for each in (task, opening):
            each.cancel()
        await asyncio.gather(task, opening, return_exceptions=True)
        await connection.close()


@pytest.fixture
async def nats(own_nats: OwnNats) -> NatsServer:
    """A server of the test's own."""
    return own_nats()


@pytest.fixture
async def relay(nats: NatsServer) -> AsyncIterator[Relay]:
    async with relaying(nats.url) as relay:
        await relay.declare()
        yield relay


async def test_feed_reads_both_buckets_and_keeps_the_marker_to_itself(nats: NatsServer, relay: Relay) -> None:
    await relay.put("aa", b"1")
    await relay.put("tenant.ten_1", b"2", CATALOGUE_BUCKET.name)
    await relay.complete()
    async with feeding(nats.url) as running:
        await running.fresh()
        assert running.view.buckets == {"keys": {"aa": b"1"}, "catalogue": {"tenant.ten_1": b"2"}}
        assert (running.feed.keys_sequence, running.feed.catalogue_sequence) == (2, 2)


async def test_feed_waits_when_nats_is_not_there_yet(own_nats: OwnNats) -> None:
    server = own_nats()
    server.stop()
    async with feeding(server.url) as running:
        await eventually(lambda: running.feed.stale_reason == "NATS is away")
        assert not running.feed.is_ready
        server.start()
        async with relaying(server.url) as relay:
            await relay.declare()
            await relay.put("aa", b"1")
            await relay.complete()
            await running.equals(relay)


async def test_feed_waits_when_the_buckets_do_not_exist_yet(own_nats: OwnNats) -> None:
    server = own_nats()
    async with feeding(server.url) as running, relaying(server.url) as relay:
        await eventually(lambda: "does not exist" in (running.feed.stale_reason or ""))
        assert not running.feed.is_ready
        await relay.declare()
        await relay.complete()
        await running.fresh()


async def test_feed_is_not_ready_before_the_relay_has_finished(nats: NatsServer, relay: Relay) -> None:
    await relay.put("aa", b"1")
    async with feeding(nats.url) as running:
        await eventually(lambda: "not complete" in (running.feed.stale_reason or ""))
        await relay.put("bb", b"2")
        await (await relay.bucket()).delete("aa")
        assert not running.feed.is_ready
        assert running.view.keys == {}
        await relay.complete()
        await running.equals(relay)
        assert running.view.keys == {"bb": b"2"}


async def test_changes_are_applied_and_announced_in_stream_order(nats: NatsServer, relay: Relay) -> None:
    await relay.complete()
    announced: list[InvalidationApplied] = []

    async def hear(message: Msg) -> None:
        assert message.headers == {"Sluicegate-Schema": "invalidation.applied.v1"}
        announced.append(msgspec.json.decode(message.data, type=InvalidationApplied))

    await relay.connection.subscribe(f"{INVALIDATION_APPLIED}.*", cb=hear)
    await relay.connection.flush()
    async with feeding(nats.url) as running:
        await running.fresh()
        bucket = await relay.bucket()
        for number in range(200):
            await relay.connection.publish(f"$KV.{KEYS_BUCKET.name}.aa", str(number).encode())
        await bucket.put("gone", b"1")
        await bucket.put("purged", b"1")
        await bucket.delete("gone")
        await bucket.purge("purged")
        await bucket.delete("never-there")
        last = await relay.put("bb", b"last")
        await eventually(lambda: announced[-1:] != [] and announced[-1].keys_sequence == last)
        assert running.view.keys == {"aa": b"199", "bb": b"last"}
        assert {each.edge for each in announced} == {"edge-1"}
        sequences = [each.keys_sequence for each in announced]
        assert sequences == sorted(sequences)
        # It goes on announcing when nothing moves.
        count = len(announced)
        await eventually(lambda: len(announced) >= count + 2)
        assert announced[-1].keys_sequence == last


async def test_many_changes_at_once_are_announced_together(nats: NatsServer, relay: Relay) -> None:
    await relay.complete()
    announced: list[int] = []

    async def hear(message: Msg) -> None:
        announced.append(msgspec.json.decode(message.data, type=InvalidationApplied).keys_sequence)

    async with feeding(nats.url) as running:
        await running.fresh()
        await relay.connection.subscribe(f"{INVALIDATION_APPLIED}.*", cb=hear)
        for number in range(2_000):
            await relay.connection.publish(f"$KV.{KEYS_BUCKET.name}.k{number}", b"1")
        await relay.connection.flush()
        await eventually(lambda: announced[-1:] == [2_001])
        assert len(announced) < 1_000
        assert len(running.view.keys) == 2_000


async def test_deleted_keys_are_absent_and_purged_markers_cost_no_second_read(nats: NatsServer, relay: Relay) -> None:
    await relay.complete()
    bucket = await relay.bucket()
    await bucket.put("aa", b"1")
    await bucket.put("bb", b"1")
    await bucket.delete("aa")
    await bucket.purge("bb")
    async with feeding(nats.url) as running:
        await running.fresh()
        assert running.view.keys == {}
    await relay.js.purge_stream(bucket_stream_name(KEYS_BUCKET.name), subject=f"$KV.{KEYS_BUCKET.name}.aa")
    await relay.js.purge_stream(bucket_stream_name(KEYS_BUCKET.name), subject=f"$KV.{KEYS_BUCKET.name}.bb")
    async with feeding(nats.url, check_every_s=0.02) as running:
        await running.fresh()
        checked_at_s = running.feed._keys.checked_at_s
        await eventually(lambda: running.feed._keys.checked_at_s > checked_at_s + 0.5)
        assert running.full_reads == 1
        assert running.feed.keys_sequence == 5


async def test_feed_resumes_without_reading_everything_when_nats_restarts(nats: NatsServer, relay: Relay) -> None:
    await relay.put("aa", b"1")
    await relay.complete()
    async with feeding(nats.url) as running:
        await running.fresh()
        await restarted(nats, relay.connection)
        await relay.put("bb", b"2")
        await (await relay.bucket()).delete("aa")
        await running.equals(relay)
        assert running.view.keys == {"bb": b"2"}
        assert running.full_reads == 1
        # And it hears what comes later.
        await relay.put("cc", b"3")
        await eventually(lambda: running.view.keys.get("cc") == b"3")


async def test_feed_reads_everything_when_its_last_message_was_replaced_meanwhile(
    nats: NatsServer, relay: Relay
) -> None:
    await relay.complete()
    await relay.put("aa", b"1")
    async with feeding(nats.url) as running:
        await running.fresh()
        running.feed._keys.doubt("a test")  # so that it is not listening
        await relay.put("aa", b"2")
        await running.equals(relay)
    async with feeding(nats.url) as running:
        await running.fresh()
        await restarted(nats, relay.connection)
        await relay.put("aa", b"3")
        await running.equals(relay)
        assert running.view.keys == {"aa": b"3"}


@pytest.mark.parametrize("remade", ["fewer", "as many", "more"])
async def test_no_key_is_skipped_or_resurrected_when_the_store_was_wiped(
    nats: NatsServer, relay: Relay, remade: str
) -> None:
    for number in range(20):
        await relay.put(f"old{number}", b"old")
    await relay.put("both", b"old")
    await relay.complete()
    async with feeding(nats.url) as running:
        await running.fresh()

        async def remake(relay: Relay) -> None:
            await relay.declare()
            for number in range({"fewer": 3, "as many": 20, "more": 40}[remade]):
                await relay.put(f"new{number}", b"new")
            await relay.put("both", b"new")
            await relay.complete()

        def lose_everything() -> None:
            nats.kill()
            nats.wipe()
            nats.start()
            relay_now(nats.url, remake)

        await restarted(nats, relay.connection, restart=lose_everything)
        await running.equals(relay)
        assert running.view.keys["both"] == b"new"
        assert not any(key.startswith("old") for key in running.view.keys)


async def test_bucket_made_again_under_a_living_connection_is_noticed(nats: NatsServer, relay: Relay) -> None:
    for number in range(5):
        await relay.put(f"old{number}", b"old")
    await relay.complete()
    async with feeding(nats.url) as running:
        await running.fresh()
        await relay.remake()
        # Not the sequence of a stream that is gone: the admin service would take it for an answer.
        await eventually(lambda: running.feed.keys_sequence == 0)
        await relay.put("new", b"new")
        await relay.complete()
        await running.equals(relay)
        assert running.view.keys == {"new": b"new"}


async def test_what_is_known_stays_when_the_bucket_comes_back_incomplete(nats: NatsServer, relay: Relay) -> None:
    await relay.put("aa", b"1")
    await relay.put("bb", b"1")
    await relay.complete()
    async with feeding(nats.url) as running:
        await running.fresh()
        await relay.remake()
        await relay.put("aa", b"2")
        await eventually(lambda: "not complete" in (running.feed.stale_reason or ""))
        assert running.view.keys == {"aa": b"1", "bb": b"1"}
        assert running.feed.is_ready
        assert running.feed.is_stale
        await relay.complete()
        await running.equals(relay)
        assert running.view.keys == {"aa": b"2"}


async def test_what_is_known_stays_when_the_stream_was_emptied(nats: NatsServer, relay: Relay) -> None:
    await relay.put("aa", b"1")
    await relay.complete()
    async with feeding(nats.url) as running:
        await running.fresh()
        await relay.js.purge_stream(bucket_stream_name(KEYS_BUCKET.name))
        await eventually(lambda: "not complete" in (running.feed.stale_reason or ""))
        assert running.view.keys == {"aa": b"1"}
        await relay.put("bb", b"1")
        await relay.complete()
        await running.equals(relay)
        assert running.view.keys == {"bb": b"1"}


async def test_other_past_under_the_same_name_is_noticed_when_a_backup_was_restored(own_nats: OwnNats) -> None:
    server = own_nats()
    async with relaying(server.url) as relay:
        await relay.declare()
        await relay.put("aa", b"1")
        await relay.complete()
        async with feeding(server.url) as running:
            await running.fresh()
            backup = Path(f"{server.directory}-backup")

            def back_up() -> None:
                server.stop()
                shutil.copytree(server.directory, backup)
                server.start()

            def restore() -> None:
                server.stop()
                server.wipe()
                shutil.move(backup, server.directory)
                server.start()
                relay_now(server.url, put_more)

            async def put_more(relay: Relay) -> None:
                for key in ("bb", "cc", "dd"):  # as many messages as were lost, and one more
                    await relay.put(key, b"3")

            await restarted(server, relay.connection, restart=back_up)
            await relay.put("lost", b"1")
            await relay.put("aa", b"2")
            await running.equals(relay)
            await restarted(server, relay.connection, restart=restore)
            await running.equals(relay)
            assert running.view.keys == {"aa": b"1", "bb": b"3", "cc": b"3", "dd": b"3"}


async def test_deleted_key_is_not_kept_when_its_marker_was_purged_during_a_long_outage(own_nats: OwnNats) -> None:
    server = own_nats()
    async with relaying(server.url) as relay:
        await relay.declare()
        await relay.put("aa", b"1")
        await relay.complete()
        async with feeding(server.url) as running:
            await running.fresh()

            async def revoke(relay: Relay) -> None:
                await (await relay.bucket()).delete("aa")
                subject = f"$KV.{KEYS_BUCKET.name}.aa"
                await relay.js.purge_stream(bucket_stream_name(KEYS_BUCKET.name), subject=subject)

            def long_outage() -> None:
                server.restart()
                relay_now(server.url, revoke)
                running.feed._keys._last_heard_s -= RESUME_WITHIN_S + 1

            await restarted(server, relay.connection, restart=long_outage)
            await running.equals(relay)
            assert running.view.keys == {}


async def test_nothing_is_missed_when_messages_are_dropped_as_slow_consumer(nats: NatsServer, relay: Relay) -> None:
    await relay.complete()
    async with feeding(nats.url, check_every_s=3600) as running:
        await running.fresh()
        tail = running.feed._keys._tail
        assert tail is not None
        assert tail.subscription is not None
        tail.subscription._pending_bytes_limit = 1
        for number in range(500):
            await relay.connection.publish(f"$KV.{KEYS_BUCKET.name}.k{number}", b"a value")
        await relay.connection.flush()
        await running.equals(relay)
        assert len(running.view.keys) == 500
        assert running.feed._keys._tail is not tail


async def test_nothing_is_missed_when_messages_are_lost_without_a_word(nats: NatsServer, relay: Relay) -> None:
    await relay.complete()
    async with feeding(nats.url, check_every_s=3600) as running:
        await running.fresh()
        tail = running.feed._keys._tail
        assert tail is not None
        assert tail.subscription is not None
        take = tail._take
        lost: list[Msg] = []

        async def lose_some(message: Msg) -> None:
            if 3 <= len(lost) < 6:
                lost.append(message)
                return
            lost.append(message)
            await take(message)

        tail.subscription._cb = lose_some
        for number in range(50):
            await relay.put(f"k{number}", b"1")
        await running.equals(relay)
        assert len(running.view.keys) == 50


async def test_silent_consumer_is_noticed_by_the_check(nats: NatsServer, relay: Relay) -> None:
    await relay.complete()
    async with feeding(nats.url) as running:
        await running.fresh()
        tail = running.feed._keys._tail
        assert tail is not None
        assert tail.subscription is not None

        async def deaf(_message: Msg) -> None:
            return

        tail.subscription._cb = deaf
        await relay.put("aa", b"1")
        await running.equals(relay)
        assert running.feed._keys._tail is not tail


async def test_deleted_consumer_is_noticed_at_once(nats: NatsServer, relay: Relay) -> None:
    await relay.complete()
    async with feeding(nats.url, check_every_s=3600) as running:
        await running.fresh()
        tail = running.feed._keys._tail
        assert tail is not None
        await relay.js.delete_consumer(bucket_stream_name(KEYS_BUCKET.name), tail._consumer)
        await eventually(lambda: running.feed._keys._tail not in {tail, None})
        await running.fresh()
        await relay.put("aa", b"1")
        await eventually(lambda: running.view.keys == {"aa": b"1"})


async def test_feed_is_stale_while_nats_does_not_answer(nats: NatsServer, relay: Relay) -> None:
    await relay.put("aa", b"1")
    await relay.complete()
    async with feeding(nats.url) as running:
        await running.fresh()
        nats.pause()
        await eventually(lambda: running.feed.is_stale)
        assert running.view.keys == {"aa": b"1"}
        nats.resume()
        await relay.put("bb", b"1")
        await running.equals(relay)


async def test_one_record_that_the_view_chokes_on_does_not_stop_the_others(nats: NatsServer, relay: Relay) -> None:
    await relay.complete()
    async with feeding(nats.url) as running:
        await running.fresh()
        running.view.fails_on = b"bad"
        await relay.put("bad", b"bad")
        last = await relay.put("aa", b"1")
        await eventually(lambda: running.feed.keys_sequence == last)
        assert running.view.keys == {"aa": b"1"}


async def test_no_consumer_is_left_behind(nats: NatsServer, relay: Relay) -> None:
    await relay.complete()
    async with feeding(nats.url) as running:
        await running.fresh()
        for _ in range(5):
            running.feed._keys.doubt("a test")
            await running.fresh()
        stream = bucket_stream_name(KEYS_BUCKET.name)
        assert len(await relay.js.consumers_info(stream)) <= 2


async def test_metrics_show_the_state_of_the_feed(nats: NatsServer, relay: Relay) -> None:
    await relay.put("aa", b"1")
    await relay.complete()
    async with feeding(nats.url) as running:
        metrics = Metrics()
        running.feed.report_to(metrics)
        before = metrics.snapshot().per_worker
        assert (before["mirror_ready"], before["mirror_stale"]) == (0, 1)
        await running.fresh()
        snapshot = metrics.snapshot()
        assert (snapshot.per_worker["mirror_ready"], snapshot.per_worker["mirror_stale"]) == (1, 0)
        assert snapshot.per_worker["mirror_keys_sequence"] == 2
        assert snapshot.counters["mirror_full_reads_total"] == [((), 2)]
        assert msgspec.json.decode(msgspec.json.encode(snapshot), type=type(snapshot)) == snapshot


@pytest.mark.slow
async def test_fifty_thousand_keys_are_read_in_slices(nats: NatsServer, relay: Relay) -> None:
    for number in range(50_000):
        await relay.connection.publish(f"$KV.{KEYS_BUCKET.name}.{number:064x}", b"x" * 300)
        if number % 1_000 == 0:
            await relay.connection.flush()
    await relay.complete()
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    started_s = time.monotonic()
    async with feeding(nats.url) as running:
        counting = asyncio.create_task(count_turns())
        await running.fresh()
        counting.cancel()
        print(f"50 000 keys in {time.monotonic() - started_s:.2f} s, {turns} turns of the loop meanwhile")
        assert len(running.view.keys) == 50_000
        assert turns > 50_000 / 128


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_view_equals_the_bucket_after_random_changes_and_faults(
    nats: NatsServer, relay: Relay, seed: int
) -> None:
    chance = random.Random(seed)
    await relay.complete()
    async with feeding(nats.url) as running:
        await running.fresh()
        for step in range(400):
            key = f"k{chance.randrange(12)}"
            match chance.choices(("put", "delete", "purge", "doubt", "remake", "restart"), (60, 20, 10, 8, 1, 0.5))[0]:
                case "put":
                    await relay.put(key, str(step).encode())
                case "delete":
                    await (await relay.bucket()).delete(key)
                case "purge":
                    await (await relay.bucket()).purge(key)
                case "doubt":
                    running.feed._keys.doubt("a test")
                case "remake":
                    await relay.remake()
                    await relay.complete()
                case "restart":
                    await restarted(nats, relay.connection)
        await running.equals(relay)
