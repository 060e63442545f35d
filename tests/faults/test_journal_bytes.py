"""Change every byte of the journal's files, and truncate them to every length: whole blocks are kept, the rest is
quarantined and reported, and no line is altered."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from structlog.testing import capture_logs

from tsd.config.state_dir import lock_state
from tsd.errors import TsdError
from tsd.ingest.journal.disk import Disk
from tsd.ingest.journal.folder import Conflict, JournalConflict, held_journal, segment_path
from tsd.ingest.journal.frames import FrameMaker, uncompressed
from tsd.ingest.journal.journal import Journal, JournalSettings
from tsd.ingest.journal.segment import HEADER_BYTES, Block, block_of, header

FLIPS = (0x01, 0x80)  # bits of a byte
BLOCKS = (
    b"put a 1356998400 1 h=a\nput a 1356998401 2 h=a\n",
    b"put b 1356998400 3 h=b\n",
    b"put c 1356998400 4 h=c\nput c 1356998401 5 h=c\n",
)
OWN = "0123456789abcdef" * 2  # the state folder
STARTS = [HEADER_BYTES]  # of the blocks, and the end
PARTS = []
for text, frame in zip(
    BLOCKS,
    (uncompressed([BLOCKS[0]]), FrameMaker().frame_of([BLOCKS[1]], 0), FrameMaker().frame_of([BLOCKS[2]], 0)),
    strict=True,
):
    PARTS.append(b"".join(block_of(frame, text.count(b"\n"), STARTS[-1], OWN)))
    STARTS.append(STARTS[-1] + len(PARTS[-1]))
WHOLE = header(STARTS[-1], OWN) + b"".join(PARTS)
SOME = 36  # bytes: an identity, and more
OTHER = b"put z 1356998400 9 h=z\n"


class NoSyncDisk(Disk):
    """A disk without syncs: no crash happens here."""

    def sync(self, fd: int) -> None:
        pass

    def sync_folder(self, folder: Path) -> None:
        pass


class Found(NamedTuple):
    """The result of a start on a journal."""

    lines: bytes
    quarantined: list[bytes]
    reported: list[str]


def start(folder: Path) -> Found:
    with capture_logs() as logs:
        journal = Journal(folder, JournalSettings(1, max_bytes=1 << 30), owner=OWN, disk=NoSyncDisk())
        segments = journal.recover()
        lines = b"".join(piece.text for segment in segments for piece in segment.pieces() if isinstance(piece, Block))
    assert sum(segment.lines for segment in segments) == lines.count(b"\n")
    reported = [str(event["path"]) for event in logs if event["event"] == "journal.segment_damaged"]
    return Found(lines, [path.read_bytes() for path in journal.quarantined], reported)


def damaged(folder: Path, text: bytes) -> Found:
    """Start on a segment of these bytes followed by an intact one. The next start reports nothing."""
    folder.mkdir()
    path = segment_path(folder, 7)
    path.write_bytes(text)
    other = b"".join(block_of(uncompressed([OTHER]), 1, HEADER_BYTES, OWN))
    segment_path(folder, 8).write_bytes(header(HEADER_BYTES + len(other), OWN) + other)
    found = start(folder)
    assert found.lines.endswith(OTHER)
    assert set(found.reported) <= {str(path)}
    again = start(folder)
    assert (again.lines, again.reported) == (found.lines, [])
    assert sorted(file.read_bytes() for file in (folder / "quarantine").glob("*")) == sorted(found.quarantined)
    return found._replace(lines=found.lines.removesuffix(OTHER))


@pytest.mark.parametrize("flip", FLIPS)
def test_each_changed_byte_is_detected(tmp_path: Path, flip: int) -> None:
    for at in range(len(WHOLE)):
        text = bytearray(WHOLE)
        text[at] ^= flip
        found = damaged(tmp_path / str(at), bytes(text))
        assert len(found.reported) == 1, at
        if at < HEADER_BYTES:  # the header only has the size
            assert (found.lines, found.quarantined) == (b"".join(BLOCKS), []), at
            continue
        hit = sum(end <= at for end in STARTS[1:])
        assert found.lines == b"".join([*BLOCKS[:hit], *BLOCKS[hit + 1 :]]), at
        assert found.quarantined == [bytes(text[STARTS[hit] : STARTS[hit + 1]])], at


def test_each_truncation_keeps_whole_blocks(tmp_path: Path) -> None:
    for size in range(len(WHOLE)):
        found = damaged(tmp_path / str(size), WHOLE[:size])
        assert len(found.reported) == 1, size
        whole = sum(end <= size for end in STARTS[1:])
        assert found.lines == b"".join(BLOCKS[:whole]), size
        start_of_rest = STARTS[whole] if size >= HEADER_BYTES else 0
        rest = WHOLE[start_of_rest:size]
        assert found.quarantined == ([rest] if rest or not start_of_rest else []), size


def test_misplaced_bytes_are_detected(tmp_path: Path) -> None:
    """Other damage by file systems: zeros, old blocks of the disk, and exchanged blocks."""
    ways = {
        "zeros behind": WHOLE + bytes(512),
        "zeros in the middle": WHOLE[: STARTS[1]] + bytes(len(PARTS[1])) + WHOLE[STARTS[2] :],
        "nothing but zeros": bytes(len(WHOLE)),
        "half a block twice": WHOLE[: STARTS[2]] + PARTS[1][:30] + WHOLE[STARTS[2] :],
        "a block without its first byte": WHOLE[: STARTS[1]] + WHOLE[STARTS[1] + 1 :],
    }
    kept = {
        "zeros behind": [*BLOCKS],
        "zeros in the middle": [BLOCKS[0], BLOCKS[2]],
        "nothing but zeros": [],
        "half a block twice": [*BLOCKS[:2]],
    }
    for way, text in ways.items():
        found = damaged(tmp_path / way, text)
        assert len(found.reported) == 1, way
        whole = [block for block in BLOCKS if block in found.lines]
        assert found.lines == b"".join(whole), way  # in order, without duplicates
        assert all(part in text for part in found.quarantined), way
        assert whole == kept.get(way, [BLOCKS[0]]), way


@pytest.mark.parametrize(
    "name", ["7.journal", "000000000000000x.journal", "0000000000000007.journal~", "core", "٣" * 16]
)
def test_other_files_are_kept(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(WHOLE)
    assert start(tmp_path) == Found(b"", [], [])
    assert (tmp_path / name).read_bytes() == WHOLE


def test_segment_that_is_a_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "0000000000000007.journal").mkdir()
    with pytest.raises(TsdError, match=rf"{tmp_path}/0000000000000007\.journal: .*{os.strerror(errno.EISDIR)}"):
        start(tmp_path)


def test_segments_replayed_in_number_order_with_gaps(tmp_path: Path) -> None:
    for number, text in ((12, BLOCKS[2]), (3, BLOCKS[0]), (9, BLOCKS[1])):
        part = b"".join(block_of(uncompressed([text]), text.count(b"\n"), HEADER_BYTES, OWN))
        (tmp_path / f"{number:016d}.journal").write_bytes(header(HEADER_BYTES + len(part), OWN) + part)
    assert start(tmp_path) == Found(b"".join(BLOCKS), [], [])


class Folders(NamedTuple):
    """A state folder and a separate journal folder with unwritten lines."""

    state: Path
    journal: Path

    def replay(self) -> bytes:
        """Return the lines that a start finds. Raise TsdError if it refuses."""
        with lock_state(self.state), held_journal(self.journal, self.state):
            return start(self.journal).lines


@pytest.fixture
def left(tmp_path: Path) -> Folders:
    folders = Folders(tmp_path / "state", tmp_path / "journal")
    assert folders.replay() == b""
    with lock_state(folders.state), held_journal(folders.journal, folders.state):
        (folders.journal / "0000000000000007.journal").write_bytes(WHOLE)
    return folders


def changed(text: bytes) -> Iterator[bytes]:
    """Yield changes of each byte, and all truncations."""
    for at, byte in enumerate(text):
        for other in {byte ^ 0x01, byte ^ 0x80, 0, ord("\n")} - {byte} if at < SOME else {0}:
            yield text[:at] + bytes([other]) + text[at + 1 :]
    for size in range(len(text)):
        yield text[:size]


def outcome(left: Folders) -> str | None:
    """Return why a start is refused; None if all lines are found."""
    try:
        assert left.replay() == b"".join(BLOCKS)
    except TsdError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", ["state/format", "state/id", "state/journal-path", "journal/owner"])
def test_changed_owner_file_loses_no_lines(left: Folders, name: str) -> None:
    """Either the lines are found, or the start is refused without a change and succeeds with the restored file."""
    path = left.state.parent / name
    before = path.read_bytes()
    refused = 0
    for text in changed(before):
        path.write_bytes(text)
        reported = outcome(left)
        assert reported is None or str(left.state) in reported or str(left.journal) in reported, text
        refused += reported is not None
        path.write_bytes(before)
    assert refused
    assert left.replay() == b"".join(BLOCKS)


def test_damaged_identity_differs_from_foreign_one(left: Folders) -> None:
    identity = left.state / "id"
    before = identity.read_text()
    for text in (before[:-2] + "x\n", before[:20], ""):
        identity.write_text(text)
        with pytest.raises(JournalConflict) as caught:
            left.replay()
        assert caught.value.conflict is Conflict.OTHER_IDENTITY, text
        assert str(left.journal / "owner") in str(caught.value), text
    identity.write_text(before)
    assert left.replay() == b"".join(BLOCKS)
