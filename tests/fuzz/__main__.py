"""Lines and requests that nobody should send, by chance, in any number.

    python -m tests.fuzz lines 10000000 -j 2       against the slow reference, in each of the two ways in
    python -m tests.fuzz requests 1000000 -j 2     against a daemon each: HTTP, first bytes of everything, TLS

`--seed` begins elsewhere; a failure says how to repeat it.
"""

import logging
import random
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import click
import structlog
import trio
from tqdm import tqdm

from tests.fuzz.against import Contest, rows_by
from tests.fuzz.flood import Came, flood
from tsd.ingest import compiled

PART_LINES = 100_000  # that share a seed
PART_REQUESTS = 50_000  # that share a seed and a daemon


class Part(NamedTuple):
    """Some lines of a run."""

    seed: int
    lines: int
    by_loop: bool


@click.group(help=__doc__)
def main() -> None:
    """See the module."""


@main.command()
@click.argument("count", type=int)
@click.option("--seed", default=1, help="of the first part; each has its own")
@click.option("-j", "--jobs", default=1, help="processes")
def lines(count: int, seed: int, jobs: int) -> None:
    """So many lines, in each way."""
    begun = time.monotonic()
    ways = [True, False] if compiled.HAS else [False]
    parts = [
        Part(seed + at // PART_LINES, min(PART_LINES, count - at), way)
        for at in range(0, count, PART_LINES)
        for way in ways
    ]
    totals: dict[bool, Counter[str]] = {way: Counter() for way in ways}
    with ProcessPoolExecutor(jobs) as pool:
        for part, verdicts in tqdm(zip(parts, pool.map(play, parts), strict=True), total=len(parts), mininterval=10):
            totals[part.by_loop].update(verdicts)
    for way in ways:
        told = ", ".join(f"{number:,} {verdict}" for verdict, number in sorted(totals[way].items()))
        click.echo(f"{'compiled' if way else 'plain'}: {totals[way].total():,} lines agree: {told}")
    click.echo(f"{time.monotonic() - begun:.0f} s")


@main.command()
@click.argument("count", type=int)
@click.option("--seed", default=1, help="of the first part; each has its own")
@click.option("-j", "--jobs", default=1, help="processes")
def requests(count: int, seed: int, jobs: int) -> None:
    """So many requests, to a daemon in each process."""
    begun = time.monotonic()
    parts = [(seed + at // PART_REQUESTS, min(PART_REQUESTS, count - at)) for at in range(0, count, PART_REQUESTS)]
    sent = connections = answered = grown = 0
    with ProcessPoolExecutor(jobs) as pool, tqdm(total=count, unit=" requests", mininterval=10) as bar:
        for came in pool.map(drown, parts):
            bar.update(came.requests)
            sent, connections, answered = sent + came.requests, connections + came.connections, answered + came.answered
            grown = max(grown, came.grown)
    click.echo(
        f"{sent:,} requests over {connections:,} connections, {answered:,} answered; no task and no connection is "
        f"left, stored points are as before; memory {grown >> 20:+,} MiB at most; {time.monotonic() - begun:.0f} s"
    )


def drown(part: tuple[int, int]) -> Came:
    """What a part's requests came to."""
    seed, count = part
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with TemporaryDirectory(prefix="fuzz-") as folder:
        try:
            return trio.run(flood, Path(folder), count, seed)
        except Exception as exc:
            exc.add_note(f"python -m tests.fuzz requests {count} --seed {seed}")
            raise


def play(part: Part) -> dict[str, int]:
    """What became of a part's lines."""
    contest = Contest(rows_by(part.by_loop), random.Random(part.seed))
    try:
        contest.run(part.lines)
    except Exception as exc:
        exc.add_note(f"python -m tests.fuzz lines {part.lines} --seed {part.seed}, by_loop={part.by_loop}")
        raise
    return contest.verdicts


if __name__ == "__main__":
    main()
