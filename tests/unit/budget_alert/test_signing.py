"""Signatures, checked as receivers check them."""

import base64
import hashlib
import hmac

from sluicegate.budget_alert import signing

KEY = bytes(range(32))
SECRET = "whsec_" + base64.b64encode(KEY).decode()
OTHER = "whsec_" + base64.b64encode(b"x" * 24).decode()


def test_signature_is_the_one_of_the_published_example() -> None:
    """The example of the Standard Webhooks reference libraries."""
    signed = signing.headers(
        "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}', ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]
    )
    assert signed["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_plain_signature_is_over_timestamp_and_body_with_the_secret_as_shown() -> None:
    signed = signing.headers("id", 1_800_000_000, b"{}", [SECRET])
    expected = hmac.new(SECRET.encode(), b"1800000000.{}", hashlib.sha256).hexdigest()
    assert signed["x-sluicegate-signature"] == f"t=1800000000,v1={expected}"


def test_each_valid_secret_signs_while_one_is_replaced() -> None:
    both = signing.headers("id", 1, b"{}", [SECRET, OTHER])
    alone = [signing.headers("id", 1, b"{}", [secret]) for secret in (SECRET, OTHER)]
    assert both["webhook-signature"].split(" ") == [one["webhook-signature"] for one in alone]
    plain = [one["x-sluicegate-signature"].removeprefix("t=1,") for one in alone]
    assert both["x-sluicegate-signature"] == "t=1," + ",".join(plain)


def test_secret_signs_as_it_stands_when_it_is_not_base64() -> None:
    signed = signing.headers("id", 1, b"{}", ["not base64!"])
    expected = base64.b64encode(hmac.new(b"not base64!", b"id.1.{}", hashlib.sha256).digest()).decode()
    assert signed["webhook-signature"] == f"v1,{expected}"


def test_message_has_no_signature_when_there_is_no_secret() -> None:
    assert signing.headers("id", 1, b"{}", []) == {"webhook-id": "id", "webhook-timestamp": "1"}
