"""What is damaged in the journal on disk is set aside, named and counted; all that is whole is kept."""

import errno
from pathlib import Path

import pytest

from tests.unit.ingest.test_journal import LINE, OWN, lines_of, make, written
from tsd.errors import TsdError
from tsd.ingest.disk import Disk
from tsd.ingest.segment import BLOCK_BYTES, HEADER_BYTES, frame, header


async def test_what_is_damaged_is_set_aside_and_named_and_what_is_behind_it_is_kept(tmp_path: Path) -> None:
    path = await written(tmp_path, [LINE, LINE * 2, LINE * 3, LINE * 4])
    data = bytearray(path.read_bytes())
    start = data.index(LINE * 2) - BLOCK_BYTES
    damaged = start, start + BLOCK_BYTES + 2 * len(LINE)
    data[start + BLOCK_BYTES + 4] ^= 1
    data[-1] ^= 1
    path.write_bytes(data)
    journal = make(tmp_path)
    [segment] = journal.recover()
    assert lines_of(segment) == LINE * 4
    assert (segment.lines, segment.size) == (4, path.stat().st_size)
    end = len(data) - len(LINE * 4) - BLOCK_BYTES
    assert {aside.name: aside.read_bytes() for aside in journal.aside} == {
        f"{path.stem}-from-byte-{damaged[0]}.journal": bytes(data[slice(*damaged)]),
        f"{path.stem}-from-byte-{end}.journal": bytes(data[end:]),
    }
    assert all(aside.parent == tmp_path / "aside" for aside in journal.aside)
    assert (journal.damaged, journal.statistics().aside) == (2 + 4, 2)
    assert [line for line in path.read_bytes().splitlines(keepends=True) if line.startswith(b"put ")] == [LINE] * 4
    for count in (6, 0):
        again = make(tmp_path)
        assert again.recover()[0].lines == 4  # the second start finds a whole segment
        assert (again.damaged, again.aside) == (count, [])  # and counts it, where the first was not ready
        again.told()


async def test_a_torn_end_is_no_damage(tmp_path: Path) -> None:
    path = await written(tmp_path, [LINE, LINE * 2])
    data = path.read_bytes()
    first = HEADER_BYTES + BLOCK_BYTES + len(LINE)
    path.write_bytes(header(first, OWN) + data[HEADER_BYTES:-1])
    journal = make(tmp_path)
    assert [lines_of(segment) for segment in journal.recover()] == [LINE]
    assert path.stat().st_size == first
    assert journal.damaged == 0
    assert [aside.read_bytes() for aside in journal.aside] == [data[first:-1]]


async def test_a_start_that_is_cut_off_while_it_mends_is_made_up_for(tmp_path: Path) -> None:
    class Cut(Disk):
        left = 0  # before the crash

        def sync(self, fd: int) -> None:
            if not self.left:
                raise OSError(errno.EIO, "as the test wants")
            self.left -= 1

    path = await written(tmp_path, [LINE, LINE * 2, LINE * 3])
    data = bytearray(path.read_bytes())
    data[HEADER_BYTES + BLOCK_BYTES] ^= 1
    path.write_bytes(data)
    for syncs in range(3):
        disk = Cut()
        disk.left = syncs
        with pytest.raises(TsdError, match="cannot be recovered"):
            make(tmp_path, disk=disk).recover()
    journal = make(tmp_path)
    assert [lines_of(segment) for segment in journal.recover()] == [LINE * 5]
    assert journal.damaged == 1
    assert [aside.read_bytes() for aside in (tmp_path / "aside").iterdir()] == [
        bytes(data[HEADER_BYTES : HEADER_BYTES + BLOCK_BYTES + len(LINE)])
    ]


async def test_what_cannot_be_mended_is_copied_once(tmp_path: Path) -> None:
    """The writer tries again without end, and filled the disk with copies."""

    class Whole(Disk):
        def truncate(self, fd: int, size: int) -> None:
            raise OSError(errno.EIO, "as the test wants")

    path = await written(tmp_path, [LINE, LINE * 2, LINE * 3])
    data = path.read_bytes()
    ends = HEADER_BYTES + BLOCK_BYTES + len(LINE), len(data) - BLOCK_BYTES - 3 * len(LINE)
    for _ in range(3):
        path.write_bytes(data[: HEADER_BYTES + 50] + b"X" + data[HEADER_BYTES + 51 : -1] + b"X")
        with pytest.raises(TsdError, match="cannot be recovered"):
            make(tmp_path, disk=Whole()).recover()
    assert {aside.name for aside in (tmp_path / "aside").iterdir()} == {
        f"{path.stem}-from-byte-{HEADER_BYTES}.journal",
        f"{path.stem}-from-byte-{ends[1]}.journal",
    }
    path.write_bytes(data[: ends[0] - 1] + b"Y" + data[ends[0] :])  # other bytes of the same place
    [segment] = make(tmp_path).recover()
    assert lines_of(segment) == LINE * 5
    other = tmp_path / "aside" / f"{path.stem}-from-byte-{HEADER_BYTES}-2.journal"
    assert other.read_bytes() == data[HEADER_BYTES : ends[0] - 1] + b"Y"


async def test_much_that_is_damaged_is_filled_by_several_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for chunk in range(BLOCK_BYTES, BLOCK_BYTES + 60):
        monkeypatch.setattr("tsd.ingest.aside._CHUNK_BYTES", chunk)
        folder = tmp_path / str(chunk)
        path = await written(folder, [LINE * 9, LINE * 2])
        path.write_bytes(path.read_bytes().replace(b"web01", b"web02", 1))
        journal = make(folder)
        assert [lines_of(segment) for segment in journal.recover()] == [LINE * 2], chunk
        assert journal.damaged == 9
        assert [lines_of(segment) for segment in make(folder).recover()] == [LINE * 2]
        assert path.read_bytes().count(b"lines 00000000") >= 1


@pytest.mark.parametrize("version", [1, 2])
async def test_segments_of_older_versions_keep_their_version_when_they_are_mended(tmp_path: Path, version: int) -> None:
    whose = None if version == 1 else OWN
    blocks = [b"".join(frame([LINE * count], count, 0, None)) for count in (1, 2, 3)]
    head = header(0, whose, version)
    path = tmp_path / "0000000000000003.journal"
    text = header(len(head) + sum(map(len, blocks)), whose, version) + b"".join(blocks)
    path.write_bytes(text[: len(head) + len(blocks[0]) + BLOCK_BYTES] + b"X" + text[len(head) + len(blocks[0]) + 48 :])
    journal = make(tmp_path)
    assert [lines_of(segment) for segment in journal.recover()] == [LINE]  # behind damage nothing is looked for
    assert journal.damaged == 5
    assert path.read_bytes() == header(len(head) + len(blocks[0]), whose, version) + blocks[0]
    path.write_bytes(b"X" + path.read_bytes()[1:])
    assert [lines_of(segment) for segment in make(tmp_path).recover()] == [LINE]
    assert path.read_bytes() == header(len(head) + len(blocks[0]), whose, version) + blocks[0]
