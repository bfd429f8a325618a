"""Where a base URL leads."""

import pytest

from sluicegate.edge.outbound.pool import Origin, split_base_url


@pytest.mark.parametrize(
    ("url", "origin", "host", "prefix"),
    [
        ("http://host/v1", Origin("host", 80, is_tls=False), "host", "/v1"),
        ("https://host/v1/", Origin("host", 443, is_tls=True), "host", "/v1"),
        ("https://host:8443", Origin("host", 8443, is_tls=True), "host:8443", ""),
        ("http://[::1]:9/a/b", Origin("::1", 9, is_tls=False), "[::1]:9", "/a/b"),
        ("http://user:secret@host/v1", Origin("host", 80, is_tls=False), "host", "/v1"),
    ],
)
def test_base_url_is_taken_apart(url: str, origin: Origin, host: str, prefix: str) -> None:
    assert split_base_url(url) == (origin, host, prefix)


@pytest.mark.parametrize("url", ["", "host/v1", "ftp://host", "http://", "http://host:x/", "http://host:99999/"])
def test_other_text_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        split_base_url(url)
