"""What stands where in the buckets: the name of an entry, and rows of the tables as the contracts' records."""

from typing import Final, Literal, NamedTuple

import msgspec

from sluicegate.contracts import subjects

BucketName = Literal["keys", "catalogue"]
BUCKET_NAMES: Final[tuple[BucketName, ...]] = ("keys", "catalogue")
STORED_AS: Final[dict[BucketName, str]] = {
    "keys": subjects.KEYS_BUCKET.name,
    "catalogue": subjects.CATALOGUE_BUCKET.name,
}
# Revoked and expired keys stay this long, so that a refusal can say which of both it is.
TOMBSTONE_DAYS: Final = 30

_ENCODER: Final = msgspec.json.Encoder()


class Entry(NamedTuple):
    """A place in a bucket: the digest of a key, or `<noun>.<id>`."""

    bucket: BucketName
    name: str

    @property
    def subject(self) -> str:
        return f"$KV.{STORED_AS[self.bucket]}.{self.name}"


def encoded(record: msgspec.Struct) -> bytes:
    """Return a record as it stands in a bucket. The same record always gives the same bytes."""
    return _ENCODER.encode(record)
