"""Blocks of columns: bytes, encoding and decoding of a point, for each kind of values. Run `python -m bench.blocks`.

An hour of 80 series at 10 s, and an hour of 1,000 series at 60 s. `sum` decodes all points and adds the values; `one`
is one series of the block. No store is involved.
"""

import time
from collections.abc import Callable

import numpy as np

from tsd.codec.blocks.block import Block, Rows, encode_block
from tsd.codec.points import Points

ROUNDS = 9
PLACE = b"bench"


def hour(kind: str, series: int, step_s: int) -> Rows:
    """Return an hour of series of one kind."""
    rng, points = np.random.default_rng(1), 3600 // step_s
    if kind == "gauges":
        bits = np.round(np.cumsum(rng.normal(0, 0.1, (series, points)), axis=1) + 50, 2).view(np.int64)
    elif kind == "counters":
        bits = np.cumsum(rng.integers(0, 10, (series, points)), axis=1)
    else:
        bits = rng.integers(0, 4, (series, points))
    return Rows(
        [b"%018d" % number for number in range(series)],
        np.zeros(series, np.bool_),
        np.full(series, 1_700_000_000_000),
        np.arange(series + 1) * points,
        np.tile(np.arange(points) * step_s * 1000, series),
        bits.ravel(),
        np.full(series * points, kind == "gauges"),
    )


def fastest_us(work: Callable[[], object]) -> float:
    """Return the shortest CPU time of some runs."""
    found = []
    for _ in range(ROUNDS):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return min(found) * 1e6


def add_all(stored: bytes) -> float:
    """Decode a block and add its values."""
    block = Block(stored, PLACE).decode()
    return float(Points(block.offsets, block.bits, block.floats).doubles().sum())


def main() -> None:
    """Print a line for each kind and size."""
    for series, step_s in ((80, 10), (1000, 60)):
        for kind in ("gauges", "counters", "small integers"):
            rows = hour(kind, series, step_s)
            stored, points = encode_block(rows, PLACE), len(rows.bits)
            encode_us = fastest_us(lambda rows=rows: encode_block(rows, PLACE))  # type: ignore[misc]
            sum_us = fastest_us(lambda stored=stored: add_all(stored))  # type: ignore[misc]
            one = np.arange(series) == series // 2
            one_us = fastest_us(lambda stored=stored, one=one: Block(stored, PLACE).decode(one))  # type: ignore[misc]
            print(
                f"{series} series at {step_s} s, {kind}: {len(stored) / points:.2f} bytes/point, "
                f"encode {encode_us / points:.3f} µs/point, sum {sum_us / points:.4f} µs/point, one {one_us:.0f} µs"
            )


if __name__ == "__main__":
    main()
