"""Every change to a segment is found, and what stood before it is kept."""

from pathlib import Path

import pytest

from tsd.ingest.segment import HEADER_BYTES, Damage, frame, header, read_blocks

GROUPS = [([b"put a 1 1 b=c\n", b"put a 2 2 b=c\n"], 2), ([b"put a 3 3 b=c\n"], 1), ([b"put a 4 4 b=c\n" * 3], 3)]
PARTS = [b"".join(frame(blocks, lines)) for blocks, lines in GROUPS]
TEXTS = [b"".join(blocks) for blocks, _ in GROUPS]
WHOLE = header(HEADER_BYTES + sum(map(len, PARTS))) + b"".join(PARTS)
ENDS = [HEADER_BYTES + sum(map(len, PARTS[: at + 1])) for at in range(len(PARTS))]


def read(path: Path) -> tuple[list[bytes], Damage | None]:
    found: list[bytes] = []
    try:
        found.extend(block.text for block in read_blocks(path))
    except Damage as damage:
        return found, damage
    return found, None


def test_a_whole_segment_gives_its_blocks(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_bytes(WHOLE)
    assert read(path) == (TEXTS, None)
    assert [block.lines for block in read_blocks(path)] == [2, 1, 3]


@pytest.mark.parametrize("bit", range(8))
def test_every_flipped_bit_is_found(tmp_path: Path, bit: int) -> None:
    path = tmp_path / "s"
    for at in range(len(WHOLE)):
        changed = bytearray(WHOLE)
        changed[at] ^= 1 << bit
        path.write_bytes(changed)
        found, damage = read(path)
        assert damage is not None, at
        whole = len(TEXTS) if at < HEADER_BYTES else sum(end <= at for end in ENDS)
        assert found == TEXTS[:whole], at
        assert damage.offset == (len(WHOLE) if at < HEADER_BYTES else [HEADER_BYTES, *ENDS][whole]), at


def test_every_truncation_is_found(tmp_path: Path) -> None:
    path = tmp_path / "s"
    for size in range(len(WHOLE)):
        path.write_bytes(WHOLE[:size])
        found, damage = read(path)
        assert damage is not None, size
        assert found == TEXTS[: sum(end <= size for end in ENDS)], size
        assert damage.acknowledged, size  # a segment had its header on disk before its name


def test_what_was_never_on_disk_for_sure_is_no_alarm(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_bytes(header(ENDS[0]) + b"".join(PARTS)[: ENDS[1] - HEADER_BYTES + 5])
    found, damage = read(path)
    assert found == TEXTS[:2]
    assert damage is not None
    assert not damage.acknowledged
