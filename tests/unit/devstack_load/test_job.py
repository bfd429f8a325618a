"""Jobs and their figures."""

from sluicegate.devstack.load.driver import request_bytes
from sluicegate.devstack.load.job import Job, chat_body, spread


def test_spread_gives_percentiles_in_microseconds() -> None:
    found = spread([1000 * value for value in range(100, 0, -1)])
    assert found is not None
    assert (found.p50_us, found.p90_us, found.p99_us, found.max_us) == (51, 91, 100, 100)


def test_spread_of_nothing_is_nothing() -> None:
    assert spread([]) is None


def test_request_keeps_the_query_and_counts_bytes() -> None:
    job = Job(
        url="http://127.0.0.1:8080/v1/chat/completions?x=1", body='{"a":"é"}', headers={"authorization": "Bearer k"}
    )
    head, _, body = request_bytes(job).partition(b"\r\n\r\n")
    assert head.split(b"\r\n") == [
        b"POST /v1/chat/completions?x=1 HTTP/1.1",
        b"host: 127.0.0.1:8080",
        b"content-type: application/json",
        b"authorization: Bearer k",
        b"content-length: 10",
    ]
    assert body == '{"a":"é"}'.encode()


def test_request_asks_for_the_close_when_connections_are_not_kept() -> None:
    assert b"\r\nconnection: close\r\n" in request_bytes(Job(url="http://h/", body="", is_kept=False))


def test_chat_body_carries_the_knobs() -> None:
    assert '"fake":"events=3"' in chat_body("m", is_streamed=True, fake="events=3")
    assert "stream" not in chat_body("m", is_streamed=False)
