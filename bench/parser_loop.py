"""The minimum work of plain Python for a put line, measured on this machine at this moment.

For each block of lines: split it, look up (metric, tags), look up or create the value's encoding, and append qualifier
and value to the series' row. There is no socket, journal, check or write. It is a reference for the daemon's work,
because other load of the machine affects both.
"""

import gc
import struct
import time

from bench.lines import Load, rounds, series_text

BLOCK_BYTES = 256 << 10  # as the daemon's reads
Row = tuple[list[int], list[bytes]]


def parser_loop_us(load: Load) -> float:
    """Return the CPU µs/line of one pass over the lines of `load`; values are not cached at first."""
    blocks = _blocks(load)
    rows: dict[tuple[bytes, bytes], Row] = {}
    for number in range(load.series):
        metric, tags = series_text(number)
        rows[metric.encode(), tags.encode()] = ([], [])
    gc.collect()
    gc.disable()  # equivalent to the daemon's high threshold
    start = time.process_time()
    count = _absorb(blocks, rows)
    spent = time.process_time() - start
    gc.enable()
    assert count == load.lines == sum(len(values) for _, values in rows.values())
    return spent / count * 1e6


def _absorb(blocks: list[bytes], rows: dict[tuple[bytes, bytes], Row]) -> int:
    encoded: dict[bytes, tuple[int, bytes]] = {}
    count = 0
    for block in blocks:
        lines = block.split(b"\n")
        lines.pop()
        for line in lines:
            _, metric, at, word, tags = line.split(b" ", 4)
            qualifiers, values = rows[metric, tags]
            try:
                flags, value = encoded[word]
            except KeyError:
                flags, value = encoded[word] = _encode(word)
            qualifiers.append(int(at) % 3600 << 4 | flags)
            values.append(value)
        count += len(lines)
    return count


def _encode(word: bytes) -> tuple[int, bytes]:
    if b"." not in word:
        number = int(word)
        size = next(size for size in (1, 2, 4, 8) if -(1 << 8 * size - 1) <= number < 1 << 8 * size - 1)
        return size - 1, number.to_bytes(size, "big", signed=True)
    real = float(word)
    single = struct.pack(">f", real)
    if struct.unpack(">f", single)[0] == real:
        return 0xB, single
    return 0xF, struct.pack(">d", real)


def _blocks(load: Load) -> list[bytes]:
    blocks: list[bytes] = []
    for connection in range(load.connections):
        text = b"".join(rounds(load, connection))
        start = 0
        while start < len(text):
            end = text.rfind(b"\n", start, start + BLOCK_BYTES) + 1
            blocks.append(text[start:end])
            start = end
    return blocks
