"""Every byte of what a daemon leaves on disk is changed, and every length is cut to: what is whole is kept, what is not
is put aside and named, and never a wrong line is taken for one that was written."""

from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import pytest
from structlog.testing import capture_logs

from tsd.errors import TsdError
from tsd.ingest.disk import Disk
from tsd.ingest.folder import held_journal
from tsd.ingest.journal import Journal
from tsd.ingest.segment import BLOCK_BYTES, HEADER_BYTES, Block, frame, header
from tsd.state import held

FLIPS = (0x01, 0x80)  # of a byte's bits
BLOCKS = (
    b"put a 1356998400 1 h=a\nput a 1356998401 2 h=a\n",
    b"put b 1356998400 3 h=b\n",
    b"put c 1356998400 4 h=c\nput c 1356998401 5 h=c\n",
)
OWN = "0123456789abcdef" * 2  # the state folder
STARTS = list(accumulate((BLOCK_BYTES + len(text) for text in BLOCKS), initial=HEADER_BYTES))  # and the segment's end
PARTS = [b"".join(frame([text], text.count(b"\n"), at, OWN)) for text, at in zip(BLOCKS, STARTS, strict=False)]
WHOLE = header(STARTS[-1], OWN) + b"".join(PARTS)
SOME = 36  # bytes: an identity, and what is behind it
OTHER = b"put z 1356998400 9 h=z\n"


class Unsynced(Disk):
    """A disk that nobody waits for: there is no crash here."""

    def sync(self, fd: int) -> None:
        pass

    def sync_folder(self, folder: Path) -> None:
        pass


class Found(NamedTuple):
    """What a start made of a journal."""

    lines: bytes
    aside: list[bytes]
    told: list[str]


def start(folder: Path) -> Found:
    with capture_logs() as logs:
        journal = Journal(folder, sync_interval_s=1, max_bytes=1 << 30, owner=OWN, disk=Unsynced())
        segments = journal.recover()
        lines = b"".join(piece.text for segment in segments for piece in segment.pieces() if isinstance(piece, Block))
    assert sum(segment.lines for segment in segments) == lines.count(b"\n")
    told = [str(event["what"]) for event in logs if event["event"] == "journal segment damaged"]
    return Found(lines, [path.read_bytes() for path in journal.aside], told)


def damaged(folder: Path, text: bytes, number: int = 7) -> Found:
    """A start on a segment of these bytes, with a whole one behind it; the next start has nothing to say any more."""
    folder.mkdir()
    path = folder / f"{number:016d}.journal"
    path.write_bytes(text)
    other = b"".join(frame([OTHER], 1, HEADER_BYTES, OWN))
    (folder / f"{number + 1:016d}.journal").write_bytes(header(HEADER_BYTES + len(other), OWN) + other)
    found = start(folder)
    assert found.lines.endswith(OTHER)
    assert all(told.startswith(f"{path}: at byte ") for told in found.told)
    again = start(folder)
    assert (again.lines, again.told) == (found.lines, [])
    assert sorted(file.read_bytes() for file in (folder / "aside").glob("*")) == sorted(found.aside)
    return found._replace(lines=found.lines.removesuffix(OTHER))


@pytest.mark.parametrize("flip", FLIPS)
def test_every_changed_byte_of_a_segment(tmp_path: Path, flip: int) -> None:
    for at in range(len(WHOLE)):
        text = bytearray(WHOLE)
        text[at] ^= flip
        found = damaged(tmp_path / str(at), bytes(text))
        assert len(found.told) == 1, at
        if at < HEADER_BYTES:  # it only says how much there was
            assert (found.lines, found.aside) == (b"".join(BLOCKS), []), at
            continue
        hit = sum(end <= at for end in STARTS[1:])
        assert found.lines == b"".join([*BLOCKS[:hit], *BLOCKS[hit + 1 :]]), at
        assert found.aside == [bytes(text[STARTS[hit] : STARTS[hit + 1]])], at


def test_every_length_of_a_segment(tmp_path: Path) -> None:
    for size in range(len(WHOLE)):
        found = damaged(tmp_path / str(size), WHOLE[:size])
        assert len(found.told) == 1, size
        whole = sum(end <= size for end in STARTS[1:])
        assert found.lines == b"".join(BLOCKS[:whole]), size
        start_of_rest = STARTS[whole] if size >= HEADER_BYTES else 0
        rest = WHOLE[start_of_rest:size]
        assert found.aside == ([rest] if rest or not start_of_rest else []), size


def test_bytes_that_are_too_many_or_of_another_place(tmp_path: Path) -> None:
    """What else a file system does: zeros, old blocks of the disk, blocks that changed places."""
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
        assert len(found.told) == 1, way
        whole = [block for block in BLOCKS if block in found.lines]
        assert found.lines == b"".join(whole), way  # in order, none twice
        assert all(aside in text for aside in found.aside), way
        assert whole == kept.get(way, [BLOCKS[0]]), way


@pytest.mark.parametrize(
    "name", ["7.journal", "000000000000000x.journal", "0000000000000007.journal~", "core", "٣" * 16]
)
def test_files_that_are_no_segments_are_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(WHOLE)
    assert start(tmp_path) == Found(b"", [], [])
    assert (tmp_path / name).read_bytes() == WHOLE


def test_what_is_no_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "0000000000000007.journal").mkdir()
    with pytest.raises(TsdError, match=rf"^journal {tmp_path}/0000000000000007\.journal: .*: Is a directory$"):
        start(tmp_path)


def test_segments_are_taken_by_their_numbers_whatever_is_missing_between_them(tmp_path: Path) -> None:
    for number, text in ((12, BLOCKS[2]), (3, BLOCKS[0]), (9, BLOCKS[1])):
        part = b"".join(frame([text], text.count(b"\n"), HEADER_BYTES, OWN))
        (tmp_path / f"{number:016d}.journal").write_bytes(header(HEADER_BYTES + len(part), OWN) + part)
    assert start(tmp_path) == Found(b"".join(BLOCKS), [], [])


class Folders(NamedTuple):
    """A state folder and a journal elsewhere, in which lines wait."""

    state: Path
    journal: Path

    def take(self) -> bytes:
        """The lines that a start finds. Raises TsdError where it refuses."""
        with held(self.state), held_journal(self.journal, self.state):
            return start(self.journal).lines


@pytest.fixture
def left(tmp_path: Path) -> Folders:
    folders = Folders(tmp_path / "state", tmp_path / "journal")
    assert folders.take() == b""
    with held(folders.state), held_journal(folders.journal, folders.state):
        (folders.journal / "0000000000000007.journal").write_bytes(WHOLE)
    return folders


def changed(text: bytes) -> Iterator[bytes]:
    """Some of what each byte can become, and all lengths."""
    for at, byte in enumerate(text):
        for other in {byte ^ 0x01, byte ^ 0x80, 0, ord("\n")} - {byte} if at < SOME else {0}:
            yield text[:at] + bytes([other]) + text[at + 1 :]
    for size in range(len(text)):
        yield text[:size]


def outcome(left: Folders) -> str | None:
    """Why a start is refused; None where all lines are there."""
    try:
        assert left.take() == b"".join(BLOCKS)
    except TsdError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", ["state/format", "state/id", "state/journal-path", "journal/owner"])
def test_every_change_of_what_says_whose_lines_they_are(left: Folders, name: str) -> None:
    """The lines are taken, or it is said why not and nothing is touched: once the file is as it was, they are."""
    path = left.state.parent / name
    before = path.read_bytes()
    refused = 0
    for text in changed(before):
        path.write_bytes(text)
        told = outcome(left)
        assert told is None or str(left.state) in told or str(left.journal) in told, text
        refused += told is not None
        path.write_bytes(before)
    assert refused
    assert left.take() == b"".join(BLOCKS)


def test_a_damaged_identity_is_told_from_a_foreign_one(left: Folders) -> None:
    identity = left.state / "id"
    before = identity.read_text()
    for text in (before[:-2] + "x\n", before[:20], ""):
        identity.write_text(text)
        with pytest.raises(TsdError) as caught:
            left.take()
        assert str(caught.value).startswith(f"state folder {left.state}: its identity is "), text
        assert str(left.journal / "owner") in str(caught.value), text
    identity.write_text(before)
    assert left.take() == b"".join(BLOCKS)
