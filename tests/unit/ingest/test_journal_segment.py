"""Every change to a segment is found, and all that is whole is kept, also behind it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
import zstandard

from tsd.ingest.journal.frames import FrameMaker, skippable, uncompressed
from tsd.ingest.journal.segment import (
    BLOCK_BYTES,
    HEADER_BYTES,
    Block,
    Damage,
    Part,
    block_of,
    filler,
    header,
    lines_in,
    read_pieces,
    write_readable,
)

GROUPS = [([b"put a 1 1 b=c\n", b"put a 2 2 b=c\n"], 2), ([b"put a 3 3 b=c\n"], 1), ([b"put a 4 4 b=c\n" * 3], 3)]
TEXTS = [b"".join(blocks) for blocks, _ in GROUPS]
OWN, OTHER = "0123456789abcdef" * 2, "f" * 32


class Whole(NamedTuple):
    """A segment as it was written."""

    text: bytes
    starts: list[int]  # of its blocks; the last one is the segment's end

    def piece(self, at: int) -> int:
        """Which block a byte is of; -1 for the header."""
        return sum(start <= at for start in self.starts) - 1


def compressed(texts: Sequence[bytes]) -> Sequence[Part]:
    return FrameMaker().frame_of(texts, 0)


def segment(
    groups: Sequence[tuple[Sequence[bytes], int]] = GROUPS,
    owner: str = OWN,
    synced: int = -1,
    frame_of: Callable[[Sequence[bytes]], Sequence[Part]] = uncompressed,
) -> Whole:
    """Return a segment of which `synced` bytes, or all, were on disk."""
    starts = [HEADER_BYTES]
    text = b""
    for blocks, lines in groups:
        text += b"".join(block_of(frame_of(blocks), lines, starts[-1], owner))
        starts.append(starts[0] + len(text))
    return Whole(header(starts[-1] if synced < 0 else synced, owner) + text, starts)


@pytest.fixture(params=[uncompressed, compressed])
def whole(request: pytest.FixtureRequest) -> Whole:
    return segment(frame_of=request.param)


def read(path: Path, search_bytes: int = 1 << 20) -> tuple[list[bytes], list[Damage]]:
    pieces = list(read_pieces(path, [OWN], search_bytes=search_bytes))
    damages = [piece for piece in pieces if isinstance(piece, Damage)]
    assert all(damage.path == path for damage in damages)
    return [piece.text for piece in pieces if isinstance(piece, Block)], damages


def test_intact_segment_gives_its_blocks(tmp_path: Path, whole: Whole) -> None:
    path = tmp_path / "s"
    path.write_bytes(whole.text)
    assert read(path) == (TEXTS, [])
    assert [piece.lines for piece in read_pieces(path) if isinstance(piece, Block)] == [2, 1, 3]


@pytest.mark.parametrize("bit", [0, 5, 7])
def test_flipped_bit_is_detected_and_loses_one_block(tmp_path: Path, whole: Whole, bit: int) -> None:
    path = tmp_path / "s"
    for at in range(len(whole.text)):
        changed = bytearray(whole.text)
        changed[at] ^= 1 << bit
        path.write_bytes(changed)
        found, [damage] = read(path)
        hit = whole.piece(at)
        if hit < 0:
            assert (found, damage.offset, damage.end) == (TEXTS, len(whole.text), len(whole.text)), at
            continue
        assert found == TEXTS[:hit] + TEXTS[hit + 1 :], at
        assert (damage.offset, damage.end) == (whole.starts[hit], whole.starts[hit + 1]), at
        assert damage.acknowledged


def test_truncation_is_detected(tmp_path: Path, whole: Whole) -> None:
    path = tmp_path / "s"
    for size in range(len(whole.text)):
        path.write_bytes(whole.text[:size])
        found, [damage] = read(path)
        assert found == TEXTS[: sum(end <= size for end in whole.starts[1:])], size
        assert damage.acknowledged, size  # a segment had its header on disk before its name
        assert damage.end == size


def test_damage_in_several_places_is_detected(tmp_path: Path) -> None:
    """The header and the first block, as when the first page is gone; and the end."""
    groups = [([b"put a %d 1 b=c\n" % at], 1) for at in range(9)]
    whole = segment(groups)
    changed = bytearray(whole.text)
    changed[: whole.starts[0] + 9] = bytes(whole.starts[0] + 9)
    for block in (3, 4, 8):
        changed[whole.starts[block + 1] - 2] ^= 1
    path = tmp_path / "s"
    path.write_bytes(changed)
    found, damages = read(path)
    assert found == [groups[at][0][0] for at in (1, 2, 5, 6, 7)]
    places = [(damage.offset, damage.end) for damage in damages]
    assert places == [(whole.starts[first], whole.starts[last]) for first, last in ((0, 1), (3, 5), (8, 9))]
    assert all(damage.acknowledged for damage in damages)


def test_adopted_segment_with_damaged_header_is_readable(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_bytes(b"X" + segment(owner=OTHER).text[1:])
    blocks = [piece.text for piece in read_pieces(path, [OWN, OTHER]) if isinstance(piece, Block)]
    assert blocks == TEXTS
    found, damages = read(path)  # where it was not adopted
    assert found == []
    assert len(damages) == 1
    whole = segment(owner=OTHER)
    path.write_bytes(bytes(whole.starts[0] + 9) + whole.text[whole.starts[0] + 9 :])  # the first block as well
    blocks = [piece.text for piece in read_pieces(path, [OWN, OTHER]) if isinstance(piece, Block)]
    assert blocks == TEXTS[1:]


def test_damage_after_the_synced_size_is_not_acknowledged(tmp_path: Path, whole: Whole) -> None:
    path = tmp_path / "s"
    path.write_bytes(header(whole.starts[1], OWN) + whole.text[HEADER_BYTES : whole.starts[2] + 5])
    found, [damage] = read(path)
    assert found == TEXTS[:2]
    assert not damage.acknowledged


def test_damage_before_an_intact_block_is_acknowledged(tmp_path: Path) -> None:
    """It was written later: the header is, too, and may speak of less."""
    whole = segment(synced=HEADER_BYTES)
    changed = bytearray(whole.text)
    changed[whole.starts[1]] ^= 1
    path = tmp_path / "s"
    path.write_bytes(changed)
    found, [damage] = read(path)
    assert found == [TEXTS[0], TEXTS[2]]
    assert damage.acknowledged


def test_forged_block_in_a_damaged_one_is_ignored(tmp_path: Path) -> None:
    """Forged by a client that knows all but the state folder's identity, or copied from another place."""
    first = b"put a 1 1 b=c\n"
    inner = HEADER_BYTES + BLOCK_BYTES + len(b"".join(uncompressed([first])))  # where it stands
    hostile = b"put hostile 1 1 b=c\n"
    forged = {
        "of another": block_of(uncompressed([hostile]), 1, inner, OTHER),
        "of another place": block_of(uncompressed([hostile]), 1, HEADER_BYTES, OWN),
        "without lines": filler(99, inner, OTHER),
    }
    real = b"".join(block_of(uncompressed([hostile]), 1, inner, OWN))
    path = tmp_path / "s"
    for how, parts in {**forged, "with the identity": [real]}.items():
        forgery = b"".join(parts)
        whole = segment([([first, forgery], 2), *GROUPS])
        path.write_bytes(whole.text)
        assert read(path) == ([first + forgery, *TEXTS], []), how
        path.write_bytes(whole.text.replace(b"put a 1 1", b"put a 9 1", 1))
        found, damages = read(path)
        if how == "with the identity":  # so the others are looked at in the right place
            assert found == [hostile, *TEXTS]
            continue
        assert found == TEXTS, how
        assert [(damage.offset, damage.end) for damage in damages] == [(whole.starts[0], whole.starts[1])], how


def test_block_after_large_damage_is_found(tmp_path: Path) -> None:
    """Its header may be anywhere in the bytes that are searched at once."""
    path = tmp_path / "s"
    for searched in range(BLOCK_BYTES, BLOCK_BYTES + 90):
        whole = segment([([b"put a 1 1 b=c\n" * 20], 20), *GROUPS])
        path.write_bytes(whole.text.replace(b"put a", b"put b", 1))
        assert read(path, searched)[0] == TEXTS, searched


def test_blocks_without_lines_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "s"
    whole = segment(GROUPS[:1])
    text = whole.text
    for size in (99, BLOCK_BYTES):
        text += b"".join(filler(size, len(text), OWN))
    text += b"".join(block_of(uncompressed(GROUPS[1][0]), GROUPS[1][1], len(text), OWN))
    path.write_bytes(header(len(text), OWN) + text[HEADER_BYTES:])
    assert read(path) == (TEXTS[:2], [])


def test_block_that_becomes_too_large_is_damage(tmp_path: Path) -> None:
    """Its CRC is right, so only someone who knows the identity can have written it, or the daemon has a bug."""
    path = tmp_path / "s"
    wrong = {
        "large": zstandard.ZstdCompressor().compress(bytes(256 << 20)),
        "of unknown size": zstandard.ZstdCompressor(write_content_size=False).compress(TEXTS[0]),
        "that says another size": b"".join(uncompressed([TEXTS[0]])).replace(b"\x1c\0\0\0", b"\x1d\0\0\0", 1),
        "with more behind it": b"".join(uncompressed([TEXTS[0]])) + TEXTS[1],
        "that is skipped": skippable(TEXTS[0]),
        "without a frame": TEXTS[0],
        "empty": b"",
    }
    for how, frame in wrong.items():
        before = segment(GROUPS[:1])
        text = before.text + b"".join(block_of([frame], 2, len(before.text), OWN))
        text += b"".join(block_of(uncompressed(GROUPS[1][0]), GROUPS[1][1], len(text), OWN))
        path.write_bytes(header(len(text), OWN) + text[HEADER_BYTES:])
        found, [damage] = read(path)
        assert found == TEXTS[:2], how
        assert damage.offset == before.starts[-1], how
        assert "cannot be decompressed" in str(damage), how


@pytest.mark.parametrize("frame_of", [uncompressed, compressed])
def test_lines_of_damaged_blocks_are_estimated(
    tmp_path: Path, frame_of: Callable[[Sequence[bytes]], Sequence[Part]]
) -> None:
    """Each changed byte is of a block's own line, whose lines can be read, or of its lines, whose number it says."""
    path = tmp_path / "s"
    groups = [([b"put a %d 1 b=c\n" % at for at in range(number)], number) for number in (20, 30)]
    whole = segment(groups, frame_of=frame_of)
    first, second, end = whole.starts
    for at in range(first, end):
        changed = bytearray(whole.text)
        changed[at] ^= 0x40
        path.write_bytes(changed)
        start, stop, lines = (first, second, 20) if at < second else (second, end, 30)
        off = 1 if whole.text[at] in b"\nJ" and frame_of is uncompressed else 0  # a line end came or went
        assert abs(lines_in(path, start, stop) - lines) <= off, at
    path.write_bytes(whole.text)
    for searched in range(BLOCK_BYTES, BLOCK_BYTES + 60):
        assert lines_in(path, first, end, chunk_bytes=searched) == 50, searched
    for size in range(BLOCK_BYTES, end - second):
        assert lines_in(path, second, second + size) == 30, size
    assert lines_in(path, second, second + BLOCK_BYTES - 1) == 0


def test_readable_lines_of_a_segment_are_written(tmp_path: Path, whole: Whole) -> None:
    path = tmp_path / "0000000000000001.journal"
    path.write_bytes(whole.text + b"".join(filler(99, len(whole.text), OWN)))
    found: list[bytes] = []
    assert write_readable(path, found.append)
    assert b"".join(found) == b"".join(TEXTS)


def test_readable_lines_of_a_damaged_segment_are_written(tmp_path: Path) -> None:
    """Each changed byte costs lines of its own block only, and is reported."""
    path = tmp_path / "0000000000000001.journal"
    groups = [([b"put a %d 1%d b=c\n" % (at, at) for at in range(number)], number) for number in (20, 30)]
    texts = [b"".join(lines) for lines, _ in groups]
    whole = segment(groups, frame_of=compressed)
    first, second, end = whole.starts
    for at in range(first, end):
        changed = bytearray(whole.text)
        changed[at] ^= 0x40
        path.write_bytes(changed)
        found: list[bytes] = []
        is_whole = write_readable(path, found.append)
        text, own = b"".join(found), int(at >= second)
        assert text.endswith(texts[1]) if own == 0 else text.startswith(texts[0]), at
        assert not is_whole or text == b"".join(texts), at
    for size in range(second + BLOCK_BYTES, end):
        path.write_bytes(whole.text[:size])
        found = []
        assert not write_readable(path, found.append)
        assert b"".join(texts).startswith(b"".join(found)), size
        assert b"".join(found).endswith(b"\n"), size


def test_missing_end_of_a_segment_is_reported(tmp_path: Path, whole: Whole) -> None:
    """Regression: only an end inside a block was. The header has the length that was on disk."""
    path = tmp_path / "0000000000000001.journal"
    for count, start in enumerate(whole.starts[:-1]):
        path.write_bytes(whole.text[:start])
        found: list[bytes] = []
        assert not write_readable(path, found.append)
        assert b"".join(found) == b"".join(TEXTS[:count])
    path.write_bytes(b"")
    assert not write_readable(path, found.append)


def test_changed_line_of_a_flood_is_reported(tmp_path: Path) -> None:
    """Regression: frames that are not compressed have no checksum, and that of the block was not used."""
    path = tmp_path / "0000000000000001.journal"
    whole = segment()
    for at in range(whole.starts[0] + BLOCK_BYTES, len(whole.text)):
        changed = bytearray(whole.text)
        changed[at] ^= 1
        path.write_bytes(changed)
        assert not write_readable(path, len), at
        path.write_bytes(changed[whole.starts[0] :])  # as in the quarantine
        assert not write_readable(path, len), at
    path.write_bytes(whole.text)
    assert write_readable(path, len)
