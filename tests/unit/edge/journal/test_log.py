"""The record log: whatever happens to the file, what is read was written, and in that order."""

import errno
import os
import resource
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluicegate.edge.journal import log
from sluicegate.edge.journal.log import FILE_HEADER, LogReader, LogWriter, Record, encode_record

BODIES = [b"", b"a", b'{"request_id":"r1"}', b"\x00" * 40, bytes(range(256)), b"last one"]
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(path: Path, bodies: list[bytes]) -> list[Record]:
    path.unlink(missing_ok=True)
    writer = LogWriter(path)
    records = [Record(writer.append(encode_record(ord("F"), body)), ord("F"), body) for body in bodies]
    writer.close()
    return records


def read(path: Path) -> tuple[list[Record], str]:
    reader = LogReader(path)
    return list(reader.records()), reader.end_state


@quick
@given(bodies=st.lists(st.binary(max_size=2000), max_size=30), types=st.data())
def test_records_come_back_as_they_were_written(tmp_path: Path, bodies: list[bytes], types: st.DataObject) -> None:
    path = tmp_path / "1.log"
    path.unlink(missing_ok=True)
    writer = LogWriter(path)
    expected = []
    for body in bodies:
        record_type = types.draw(st.integers(0, 255))
        expected.append(Record(writer.append(encode_record(record_type, body)), record_type, body))
    writer.close()
    assert read(path) == (expected, "clean")


def test_reading_stops_at_the_last_whole_record_when_cut_at_any_offset(tmp_path: Path) -> None:
    path = tmp_path / "1.log"
    records = write(path, BODIES)
    whole = path.read_bytes()
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        expected = [record for record in records if record.end <= size]
        is_boundary = size == len(FILE_HEADER) or bool(expected and expected[-1].end == size)
        assert read(path) == (expected, "clean" if is_boundary else "torn"), size


def test_reading_stops_at_the_bad_record_when_any_byte_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "1.log"
    records = write(path, BODIES)
    whole = path.read_bytes()
    for position in range(len(FILE_HEADER), len(whole)):
        for flip in (0x01, 0x80, 0xFF):
            broken = bytearray(whole)
            broken[position] ^= flip
            path.write_bytes(broken)
            expected = [record for record in records if record.end <= position]
            is_last = position >= records[-1].offset
            assert read(path) == (expected, "torn" if is_last else "damaged"), (position, flip)


@quick
@given(
    bodies=st.lists(st.binary(max_size=300), min_size=1, max_size=20),
    junk=st.binary(min_size=1, max_size=200),
    data=st.data(),
)
def test_whatever_is_overwritten_the_records_before_it_are_read(
    tmp_path: Path, bodies: list[bytes], junk: bytes, data: st.DataObject
) -> None:
    path = tmp_path / "1.log"
    records = write(path, bodies)
    whole = bytearray(path.read_bytes())
    position = data.draw(st.integers(len(FILE_HEADER), len(whole) - 1))
    before = bytes(whole)
    whole[position : position + len(junk)] = junk
    path.write_bytes(whole)
    found, end_state = read(path)
    untouched = [record for record in records if record.end <= position]
    assert found[: len(untouched)] == untouched
    assert end_state == "clean" or bytes(whole) != before


def test_file_is_damaged_when_its_header_is_foreign_or_later(tmp_path: Path) -> None:
    path = tmp_path / "1.log"
    for head in (b"NOTALOG!", log.MAGIC + b"\x02\x00", b"X"):
        path.write_bytes(head + encode_record(ord("F"), b"x") * (len(head) == 8))
        assert read(path) == ([], "damaged")


def test_zeros_at_the_end_are_torn_and_no_records(tmp_path: Path) -> None:
    """What a file system leaves after a loss of power: the length was written, the data was not."""
    path = tmp_path / "1.log"
    records = write(path, BODIES)
    path.write_bytes(path.read_bytes() + bytes(4096))
    assert read(path) == (records, "torn")


def test_records_longer_than_a_chunk_are_read(tmp_path: Path) -> None:
    path = tmp_path / "1.log"
    bodies = [b"a" * 10, b"b" * (log.CHUNK_BYTES * 2), b"c" * (log.CHUNK_BYTES - 5), b"d"] * 2
    records = write(path, bodies)
    assert read(path) == (records, "clean")


def test_chunks_are_bounded_and_part_of_a_file_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "1.log"
    records = write(path, [b"x" * 1000] * 2000)
    reader = LogReader(path)
    chunks = list(reader.chunks())
    reader.close()
    assert len(chunks) > 3
    assert all(sum(len(record.body) for record in chunk) <= log.CHUNK_BYTES for chunk in chunks)
    assert [record for chunk in chunks for record in chunk] == records
    part = LogReader(path, start=records[10].offset, stop=records[20].offset)
    assert list(part.records()) == records[10:20]
    assert part.end_state == "clean"


def test_short_write_is_cut_back_when_the_disk_is_full(tmp_path: Path) -> None:
    path = tmp_path / "1.log"
    writer = LogWriter(path)
    first = writer.append(encode_record(ord("F"), b"first"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (writer.position + 20, hard))
    try:
        for _ in range(3):
            with pytest.raises(OSError, match=r"space|large"):
                writer.append(encode_record(ord("F"), b"x" * 100))
            assert path.stat().st_size == writer.position
        second = writer.append(encode_record(ord("F"), b"small"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    third = writer.append(encode_record(ord("F"), b"third"))
    writer.close()
    assert read(path) == (
        [Record(first, ord("F"), b"first"), Record(second, ord("F"), b"small"), Record(third, ord("F"), b"third")],
        "clean",
    )


def test_torn_record_stays_the_last_when_it_cannot_be_cut_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "1.log"
    writer = LogWriter(path)
    offset = writer.append(encode_record(ord("F"), b"first"))
    real_write = os.write
    monkeypatch.setattr(log, "_write", lambda fd, data: real_write(fd, data[:7]))

    def fail(fd: int, size: int) -> None:
        raise OSError(errno.EIO, "broken disk")

    monkeypatch.setattr(os, "ftruncate", fail)
    with pytest.raises(OSError, match="broken disk"):
        writer.append(encode_record(ord("F"), b"second"))
    monkeypatch.undo()
    assert writer.is_closed
    with pytest.raises(OSError, match="descriptor"):
        writer.append(encode_record(ord("F"), b"third"))
    assert read(path) == ([Record(offset, ord("F"), b"first")], "torn")


def test_no_file_is_left_when_its_first_records_do_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "_write", lambda fd, data: len(data) - 1)
    with pytest.raises(OSError, match="space"):
        LogWriter(tmp_path / "1.log", [encode_record(ord("A"), b"open")])
    assert list(tmp_path.iterdir()) == []


def test_first_records_are_there_at_once(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "1.log", [encode_record(ord("A"), body) for body in (b"one", b"two")])
    writer.append(encode_record(ord("F"), b"three"))
    writer.close()
    assert [record.body for record in read(tmp_path / "1.log")[0]] == [b"one", b"two", b"three"]
    with pytest.raises(FileExistsError):
        LogWriter(tmp_path / "1.log")
