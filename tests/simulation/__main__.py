"""Run the daemon's parts on virtual time while store, disk, clients and clock fail at random.

    python -m tests.simulation                     seeds 1 to 1000
        python -m tests.simulation 17                  one seed, with its events
        python -m tests.simulation 1:1000000 -j 4      many, in four processes

A seed gives the same run each time. PYTHONHASHSEED is set to 0 because it decides the order of sets of bytes.
"""

import argparse
import os
import sys
import time
import traceback
from collections.abc import Iterator

import click
from rich.console import Console
from rich.progress import track

from tests.simulation.seed import Outcome, simulate
from tests.workers import tied_workers

CHUNK = 50  # seeds that a process gets at a time


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__.split("\n\n")[0])
    parser.add_argument("seeds", nargs="?", default="1:1000", help="one seed, or first:last")
    parser.add_argument("-j", "--jobs", type=int, default=1, help="processes")
    parser.add_argument("-k", "--keep-going", action="store_true", help="continue after a failure")
    parser.add_argument("-t", "--trace", action="store_true", help="print the result of each seed")
    parser.add_argument("-v", "--verbose", action="store_true", help="show the daemon's log")
    given = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.simulation", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    first, _, last = given.seeds.partition(":")
    begun = time.monotonic()
    count = steps = crashes = acked = failed = 0
    total = int(last or first) - int(first) + 1
    drawn = outcomes(int(first), int(last or first), given.jobs, silent=not given.verbose)
    for outcome in track(drawn, "seeds", total=total, console=Console(stderr=True), disable=not sys.stderr.isatty()):
        count += 1
        steps += outcome.steps
        crashes += outcome.crashes
        acked += outcome.acked
        if given.trace:
            click.echo(f"{outcome.seed}: {outcome.steps} steps, {outcome.digest}")
        if given.keep_going and last and outcome.error is not None:
            click.echo(f"{outcome.seed}: {type(outcome.error).__name__}: {str(outcome.error)[:200]}")
        elif outcome.error is not None or not last:
            print_outcome(outcome)
        if outcome.error is not None:
            failed += 1
            if not given.keep_going:
                break
    click.echo(
        f"{count} seeds, {failed} failed: {crashes} crashes, {acked} lines acknowledged, {steps} steps, "
        f"{time.monotonic() - begun:.1f} s"
    )
    return failed > 0


def outcomes(first: int, last: int, jobs: int, *, silent: bool) -> Iterator[Outcome]:
    """Simulate all seeds, in order."""
    seeds = range(first, last + 1)
    if jobs == 1 or len(seeds) == 1:
        yield from (simulate(seed, silent=silent) for seed in seeds)
        return
    with tied_workers(jobs) as pool:
        yield from pool.map(simulate, seeds, chunksize=CHUNK)


def print_outcome(outcome: Outcome) -> None:
    """Print the result of a seed."""
    click.echo(outcome.plan)
    click.echo("\n".join(outcome.events))
    if outcome.error is not None:
        traceback.print_exception(outcome.error)
        click.echo(f"seed {outcome.seed} failed: python -m tests.simulation {outcome.seed}")


if __name__ == "__main__":
    sys.exit(main())
