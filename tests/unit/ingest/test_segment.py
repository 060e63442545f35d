"""Every change to a segment is found, and what stood before it is kept."""

from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import pytest

from tsd.ingest.segment import Damage, frame, header, read_blocks

GROUPS = [([b"put a 1 1 b=c\n", b"put a 2 2 b=c\n"], 2), ([b"put a 3 3 b=c\n"], 1), ([b"put a 4 4 b=c\n" * 3], 3)]
PARTS = [b"".join(frame(blocks, lines)) for blocks, lines in GROUPS]
TEXTS = [b"".join(blocks) for blocks, _ in GROUPS]
OWNERS = ["0123456789abcdef" * 2, None]  # None: a segment of the first version


class Whole(NamedTuple):
    """A segment as it was written."""

    text: bytes
    ends: list[int]  # of its blocks
    header_bytes: int
    owner: str | None


@pytest.fixture(params=OWNERS, ids=["second", "first"])
def whole(request: pytest.FixtureRequest) -> Whole:
    size = len(header(0, request.param))
    ends = list(accumulate(map(len, PARTS), initial=size))[1:]
    return Whole(header(ends[-1], request.param) + b"".join(PARTS), ends, size, request.param)


def read(path: Path) -> tuple[list[bytes], Damage | None]:
    found: list[bytes] = []
    try:
        found.extend(block.text for block in read_blocks(path))
    except Damage as damage:
        return found, damage
    return found, None


def test_a_whole_segment_gives_its_blocks(tmp_path: Path, whole: Whole) -> None:
    path = tmp_path / "s"
    path.write_bytes(whole.text)
    assert read(path) == (TEXTS, None)
    assert [block.lines for block in read_blocks(path)] == [2, 1, 3]


@pytest.mark.parametrize("bit", range(8))
def test_every_flipped_bit_is_found(tmp_path: Path, whole: Whole, bit: int) -> None:
    path = tmp_path / "s"
    for at in range(len(whole.text)):
        changed = bytearray(whole.text)
        changed[at] ^= 1 << bit
        path.write_bytes(changed)
        found, damage = read(path)
        assert damage is not None, at
        kept = len(TEXTS) if at < whole.header_bytes else sum(end <= at for end in whole.ends)
        assert found == TEXTS[:kept], at
        assert damage.offset == (
            len(whole.text) if at < whole.header_bytes else [whole.header_bytes, *whole.ends][kept]
        ), at


def test_every_truncation_is_found(tmp_path: Path, whole: Whole) -> None:
    path = tmp_path / "s"
    for size in range(len(whole.text)):
        path.write_bytes(whole.text[:size])
        found, damage = read(path)
        assert damage is not None, size
        assert found == TEXTS[: sum(end <= size for end in whole.ends)], size
        assert damage.acknowledged, size  # a segment had its header on disk before its name


def test_what_was_never_on_disk_for_sure_is_no_alarm(tmp_path: Path, whole: Whole) -> None:
    path = tmp_path / "s"
    path.write_bytes(header(whole.ends[0], whole.owner) + whole.text[whole.header_bytes : whole.ends[1] + 5])
    found, damage = read(path)
    assert found == TEXTS[:2]
    assert damage is not None
    assert not damage.acknowledged
