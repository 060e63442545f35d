"""Much that is written at once goes past the page cache, and into the file as little does."""

import errno
import os
import resource
from pathlib import Path

import pytest

from tsd.ingest.journal.disk import PAGE_BYTES, DirectWriter, Disk, cut

MUCH = [bytes([number % 251]) * size for number, size in enumerate([57, 300_001, 1, 4096, 900_000, 70, 8191])]
TEXT = b"".join(MUCH)


@pytest.mark.parametrize("at", [0, 1, PAGE_BYTES - 1, PAGE_BYTES, 3 * PAGE_BYTES + 17])
def test_write_at_any_offset_stores_the_same_bytes(tmp_path: Path, at: int) -> None:
    disk = Disk()
    path = tmp_path / "file"
    fd = disk.create(path)
    before = os.urandom(at)
    assert disk.write(fd, [before], 0) == at
    assert disk.write(fd, MUCH, at) == at + len(TEXT)
    assert disk.write(fd, [b"", b"little"], at + len(TEXT)) == at + len(TEXT) + 6
    assert disk.write(fd, MUCH, at + len(TEXT) + 6) == at + 2 * len(TEXT) + 6
    disk.write(fd, [b"head"], 0)
    disk.sync(fd)
    disk.close(fd)
    assert path.read_bytes() == b"head" + (before + TEXT + b"little" + TEXT)[4:]


def test_whole_pages_are_written_directly_if_supported(tmp_path: Path) -> None:
    """By a file system that cannot, nothing is."""
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    parts = [memoryview(part) for part in MUCH]
    left = DirectWriter().write(fd, parts, 0)
    whole = len(TEXT) // PAGE_BYTES * PAGE_BYTES
    assert (left.at, b"".join(left.parts)) in [(whole, TEXT[whole:]), (0, TEXT)]
    assert (tmp_path / "file").read_bytes() == TEXT[: left.at]
    os.close(fd)


def test_file_without_direct_writes_is_written_normally(tmp_path: Path) -> None:
    """So are all others then."""
    writer = DirectWriter()
    fd = os.open("/dev/null", os.O_RDWR)
    parts = [memoryview(part) for part in MUCH]
    for _ in range(2):
        assert writer.write(fd, parts, 0) == (parts, 0)
    assert Disk().write(fd, MUCH, 0) == len(TEXT)
    other = Disk().create(tmp_path / "file")
    assert writer.write(other, parts, 0) == (parts, 0)
    os.close(other)
    os.close(fd)


def test_direct_write_error_is_raised_by_the_normal_write(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    writer = DirectWriter()
    parts = [memoryview(part) for part in MUCH]
    fd = os.open(path, os.O_RDONLY)
    left = writer.write(fd, parts, 0)
    assert (b"".join(left.parts), left.at) == (TEXT, 0)
    with pytest.raises(OSError) as refused:  # noqa: PT011 - the number is compared
        Disk().write(fd, MUCH, 0)
    assert refused.value.errno == errno.EBADF
    os.close(fd)
    found = []
    for one in (writer, DirectWriter()):  # the next file is written directly again, if that is supported
        fd = Disk().create(path)
        found.append(one.write(fd, parts, 0))
        os.close(fd)
    assert found[0] == found[1]


def test_many_small_parts_are_written_whole(tmp_path: Path) -> None:
    small = [bytes([number % 251]) * (number % 90 + 1) for number in range(20_000)]
    disk = Disk()
    fd = disk.create(tmp_path / "file")
    assert disk.write(fd, small, 5) == 5 + sum(map(len, small))
    disk.close(fd)
    assert (tmp_path / "file").read_bytes() == bytes(5) + b"".join(small)


@pytest.mark.parametrize("room", [700_000, 170 * PAGE_BYTES])
def test_file_size_limit_raises_and_a_retry_succeeds(tmp_path: Path, room: int) -> None:
    disk = Disk()
    path = tmp_path / "file"
    fd = disk.create(path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        with pytest.raises(OSError) as refused:  # noqa: PT011 - the number is compared
            disk.write(fd, MUCH, 0)
        assert refused.value.errno == errno.EFBIG
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_bytes() == TEXT[: path.stat().st_size]
    assert disk.write(fd, MUCH, 0) == len(TEXT)
    disk.close(fd)
    assert path.read_bytes() == TEXT


def test_parts_can_be_cut_at_each_byte() -> None:
    parts = [memoryview(part) for part in (b"ab", b"c", b"def")]
    for size in range(7):
        first, others = cut(parts, size)
        assert (b"".join(first), b"".join(others)) == (b"abcdef"[:size], b"abcdef"[size:])
