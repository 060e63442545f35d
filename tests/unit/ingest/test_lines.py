"""Torn bytes → whole lines, however they were torn."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsd.ingest.lines import START_BYTES, LineBuffer, TooLong

LIMIT = 64


def fed(*pieces: bytes) -> tuple[list[bytes | TooLong], bytes]:
    """What comes out, neighbouring blocks put together, and what is still held."""
    buffer = LineBuffer(LIMIT)
    found: list[bytes | TooLong] = []
    for piece in pieces:
        for out in buffer.feed(piece):
            if found and isinstance(out, bytes) and isinstance(found[-1], bytes):
                found[-1] += out
            else:
                found.append(out)
    return found, buffer.tail


@pytest.mark.parametrize(
    ("sent", "blocks", "tail"),
    [
        (b"", [], b""),
        (b"help\n", [b"help\n"], b""),
        (b"help\r\n", [b"help\n"], b""),
        (b"help\r\r\n", [b"help\r\n"], b""),
        (b"a\rb\n", [b"a\rb\n"], b""),
        (b"put m 1 12", [], b"put m 1 12"),
        (b"\n\n", [b"\n\n"], b""),
        (b"x" * LIMIT + b"\n", [b"x" * LIMIT + b"\n"], b""),
        (b"x" * LIMIT + b"\r\n", [b"x" * LIMIT + b"\n"], b""),
        (b"x" * (LIMIT + 1) + b"\nok\n", [TooLong(LIMIT, b"x" * LIMIT), b"ok\n"], b""),
        (
            b"a\n" + b"x" * 500 + b"\nb\n" + b"y" * 300 + b"\n",
            [b"a\n", TooLong(LIMIT, b"x" * LIMIT), b"b\n", TooLong(LIMIT, b"y" * LIMIT)],
            b"",
        ),
        (b"x" * 500, [TooLong(LIMIT, b"x" * LIMIT)], b""),
    ],
)
def test_whole_and_split_input_give_equal_lines(sent: bytes, blocks: list[bytes | TooLong], tail: bytes) -> None:
    assert fed(sent) == (blocks, tail)
    assert fed(*(sent[at : at + 1] for at in range(len(sent)))) == (blocks, tail)


def test_long_line_keeps_only_its_start() -> None:
    buffer = LineBuffer(16384)
    for piece in (b"put sys.cpu 1 1 " + b"x" * 20000, b"y" * 20000):
        found = buffer.feed(piece)
        assert found in ([TooLong(16384, b"put sys.cpu 1 1 " + b"x" * (START_BYTES - 16))], [])
    assert buffer.tail == b""


LINES = st.lists(st.binary(max_size=90).map(lambda line: line.replace(b"\n", b"") + b"\n"), max_size=12)


@given(LINES, st.binary(max_size=LIMIT).map(lambda tail: tail.replace(b"\n", b"")), st.data())
def test_any_split_of_the_input_gives_equal_lines(lines: list[bytes], tail: bytes, data: st.DataObject) -> None:
    sent = b"".join(lines) + tail
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=8)))
    torn = [sent[a:b] for a, b in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    assert fed(*torn) == fed(sent)
    whole, held = fed(sent)
    assert held == tail
    kept = [line for out in whole if isinstance(out, bytes) for line in out.split(b"\n")[:-1]]
    bare = [line[:-1].removesuffix(b"\r") for line in lines]
    assert kept == [line for line in bare if len(line) <= LIMIT]
    starts = [out.start for out in whole if isinstance(out, TooLong)]
    assert starts == [line[:LIMIT] for line in bare if len(line) > LIMIT]
