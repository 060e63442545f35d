"""Every change to a segment is found, and all that is whole is kept, also behind it."""

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import pytest

from tsd.ingest.journal.segment import BLOCK_BYTES, HEADER_BYTES, Block, Damage, frame, header, read_pieces

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


def segment(groups: Sequence[tuple[Sequence[bytes], int]] = GROUPS, owner: str = OWN, synced: int = -1) -> Whole:
    """Return a segment of which `synced` bytes, or all, were on disk."""
    starts = [HEADER_BYTES]
    text = b""
    for blocks, lines in groups:
        text += b"".join(frame(blocks, lines, starts[-1], owner))
        starts.append(starts[0] + len(text))
    return Whole(header(starts[-1] if synced < 0 else synced, owner) + text, starts)


@pytest.fixture
def whole() -> Whole:
    return segment()


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
    synced = segment(synced=whole.starts[1])
    path.write_bytes(synced.text[: whole.starts[2] + 5])
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
    inner = HEADER_BYTES + BLOCK_BYTES + len(b"put a 1 1 b=c\n")  # where it stands
    hostile = [b"put hostile 1 1 b=c\n"]
    forged = {
        "of another": frame(hostile, 1, inner, OTHER),
        "of another place": frame(hostile, 1, HEADER_BYTES, OWN),
        "without lines": frame(hostile, 0, inner, OTHER),
    }
    real = b"".join(frame(hostile, 1, inner, OWN))
    path = tmp_path / "s"
    for how, parts in {**forged, "with the identity": [real]}.items():
        whole = segment([([b"put a 1 1 b=c\n", *parts], 2), *GROUPS])
        path.write_bytes(whole.text)
        assert read(path) == ([b"put a 1 1 b=c\n" + b"".join(parts), *TEXTS], []), how
        path.write_bytes(whole.text.replace(b"put a 1 1", b"put a 9 1", 1))
        found, damages = read(path)
        if how == "with the identity":  # so the others are looked at in the right place
            assert found == [*hostile, *TEXTS]
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
    path.write_bytes(segment([GROUPS[0], ([b" " * 99], 0), ([], 0), GROUPS[1]]).text)
    assert read(path) == (TEXTS[:2], [])


def test_block_offsets_follow_from_their_sizes() -> None:
    whole = segment()
    assert whole.starts == list(accumulate((BLOCK_BYTES + len(text) for text in TEXTS), initial=HEADER_BYTES))
