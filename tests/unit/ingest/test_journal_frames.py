"""Frames of put lines: what was put in comes out, or an error; a flood is not compressed."""

from collections.abc import Sequence

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tsd.ingest.journal.frames import FrameMaker, readable, skippable, text_of, uncompressed
from tsd.ingest.journal.line_columns import HAS_LOOP, MARK

LINE = b"put m 1356998400 1 host=web01\n"
MIB = 1 << 20
FLOOD = [LINE * (2 * MIB // len(LINE))]  # a group


def compressed(texts: Sequence[bytes]) -> bytes:
    return b"".join(FrameMaker().frame_of(texts, 0))


@given(st.lists(st.binary(), min_size=1).filter(any))
def test_texts_come_out_as_they_were(texts: list[bytes]) -> None:
    assert text_of(b"".join(uncompressed(texts))) == text_of(compressed(texts)) == b"".join(texts)


@pytest.mark.parametrize("sizes", [[131_071], [131_072], [131_073], [7, 400_000, 7], [100_000] * 9, [1] * 300_000])
def test_uncompressed_frame_of_any_size_is_read(sizes: list[int]) -> None:
    """zstd takes at most 128 KiB in a block of a frame."""
    texts = [bytes([65 + at % 26]) * size for at, size in enumerate(sizes)]
    frame = b"".join(uncompressed(texts))
    assert text_of(frame) == b"".join(texts)
    assert len(frame) < sum(sizes) + 40


def made(maker: FrameMaker, texts: Sequence[bytes], now_s: float) -> bool:
    """Make a frame, and return whether it is compressed."""
    frame = b"".join(maker.frame_of(texts, now_s))
    assert text_of(frame) == b"".join(texts)
    return len(frame) < sum(map(len, texts)) / 4


def test_flood_is_not_compressed() -> None:
    maker = FrameMaker()
    groups = [made(maker, FLOOD, at * 0.01) for at in range(100)]  # 200 MiB a second
    assert groups == sorted(groups, reverse=True)  # only its first ones are
    assert 1 <= groups.count(True) < 10
    assert not made(maker, FLOOD, 1.01)
    assert made(maker, [LINE * 100], 10)  # it is over


def test_lines_at_an_even_pace_and_bursts_of_agents_are_compressed() -> None:
    maker = FrameMaker()
    assert all(made(maker, FLOOD, at * 0.2) for at in range(20))
    for round_s in range(10, 50, 10):  # three groups at once
        assert all(made(maker, FLOOD, round_s + at * 0.01) for at in range(3))


def test_group_of_a_slow_disk_is_not_compressed_at_once() -> None:
    assert not made(FrameMaker(), FLOOD * 8, 100)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        LINE,
        skippable(LINE),
        b"".join(uncompressed([])),
        compressed([LINE])[:-1],
        compressed([LINE]) + b"X",
        compressed([LINE]) * 2,
        zstandard.ZstdCompressor(write_content_size=False).compress(LINE),
        zstandard.ZstdCompressor().compress(bytes(64 * MIB)),
    ],
)
def test_what_is_no_frame_of_lines_is_refused(frame: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        text_of(frame)


def test_changed_compressed_frame_is_refused() -> None:
    """Even without the segment's CRC."""
    frame = compressed([b"put a %d 1 b=c\n" % at for at in range(50)])
    text = text_of(frame)
    for at in range(len(frame)):
        changed = bytearray(frame)
        changed[at] ^= 1
        try:
            assert text_of(bytes(changed)) == text, at  # a bit that means nothing
        except ValueError:
            continue


def test_start_of_a_cut_frame_is_readable() -> None:
    texts = [LINE * 10_000]
    for frame in (b"".join(uncompressed(texts)), compressed(texts)):
        whole = readable(frame[at : at + 4096] for at in range(0, len(frame) + 99, 4096))
        assert (whole.lines, whole.is_whole) == (10_000, True)
        cut = readable(iter([frame[:-9]]))
        assert cut.lines < 10_000
        assert not cut.is_whole
    assert readable(iter([LINE])) == (0, False, False)


def test_columns_longer_than_any_that_are_made_are_cut() -> None:
    """Regression: one damaged piece could bring 100 MiB of columns, whose lines took 500 MiB."""
    names, time = b"put m host=web01\n", b"1356998400 "
    columns = MARK + b"%08x%08x" % (len(names), len(time)) + names + time + b"1" * 64 * MIB + b" "
    found: list[bytes] = []
    assert readable(iter([zstandard.ZstdCompressor(write_checksum=True).compress(columns)]), found.append).lines == 0
    assert b"".join(found) == b""


def test_zeros_in_a_frame_that_is_not_compressed_cost_their_own_lines_only() -> None:
    """Regression: a page of zeros, as a disk may leave, was taken for the start of columns."""
    lines = [b"put m %d 1 host=web01\n" % at for at in range(10_000)]
    frame = bytearray(b"".join(uncompressed(lines)))
    middle = len(frame) // 2
    frame[middle : middle + 8192] = bytes(8192)
    for size in (1000, 4096, len(frame)):
        found: list[bytes] = []
        readable((bytes(frame[at : at + size]) for at in range(0, len(frame), size)), found.append)
        text = b"".join(found)
        assert len(text) == sum(map(len, lines))
        assert text.startswith(b"".join(lines[:4000]))
        assert text.endswith(b"".join(lines[6000:]))


def test_lines_of_agents_take_few_bytes() -> None:
    lines = [
        b"put sys.m%d 17000000%02d %d.%02d host=web%03d\n" % (at % 50, at % 7, at, at % 97, at // 50)
        for at in range(5000)
    ]
    whole = b"".join(lines)
    frame = compressed([whole])
    assert text_of(frame) == whole
    found: list[bytes] = []
    assert readable(iter([frame]), found.append).is_whole
    assert b"".join(found) == whole
    cut: list[bytes] = []
    assert not readable(iter([frame[: len(frame) * 9 // 10]]), cut.append).is_whole
    assert whole.startswith(b"".join(cut))
    if HAS_LOOP:
        plain = zstandard.ZstdCompressor(level=1).compress(whole)
        assert len(frame) < len(plain) * 0.75
