"""Reading the server's answers to a publish."""

from nats.aio.msg import Msg

from sluicegate.bus.acked_publisher import Ack, _parse, _Refusal
from sluicegate.bus.connection import Connection, _without_password


def answer(data: bytes, headers: dict[str, str] | None = None) -> Msg:
    return Msg(_client=Connection("test"), subject="_INBOX.x.1", data=data, headers=headers)


def test_acknowledgement_is_read_with_and_without_duplicate() -> None:
    assert _parse(answer(b'{"stream":"USAGE","seq":7}')) == Ack("USAGE", 7)
    assert _parse(answer(b'{"stream":"USAGE","seq":7,"duplicate":true,"domain":"x"}')) == Ack(
        "USAGE", 7, duplicate=True
    )


def test_refusal_is_read_with_its_code() -> None:
    data = b'{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"},"stream":"USAGE","seq":0}'
    assert _parse(answer(data)) == _Refusal(503, 10077, "maximum messages exceeded")


def test_empty_answer_means_that_no_stream_listens() -> None:
    outcome = _parse(answer(b"", {"Status": "503"}))
    assert isinstance(outcome, _Refusal)
    assert outcome.code == 503
    assert isinstance(_parse(answer(b"")), _Refusal)


def test_unreadable_answer_is_a_refusal_and_not_an_error() -> None:
    for data in (b"+ACK", b"[]", b'{"seq":"x"}', b"\xff"):
        assert isinstance(_parse(answer(data)), _Refusal)


def test_logged_address_holds_no_password() -> None:
    assert _without_password("nats://u:p@h1:4222,nats://h2:4223") == "h1:4222,h2:4223"
