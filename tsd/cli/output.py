"""How far a long command is: a bar on a terminal, else a plain line now and then. All of it on standard error."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click
import trio
from tqdm import tqdm

EVERY_S = 10.0  # between two plain lines


class Progress:
    """Counts things done. `total` None: nobody knows how many there are."""

    def __init__(self, unit: str, total: int | None = None) -> None:
        """`unit` is what is counted, e.g. "rows"."""
        self._unit = unit
        self._total = total
        self._done = 0
        self._last_s = trio.current_time()
        self._bar = tqdm(total=total, unit=f" {unit}", disable=None, file=sys.stderr, leave=False)  # None: no terminal

    def add(self, count: int) -> None:
        """So many more are done."""
        self._done += count
        self._bar.update(count)
        now_s = trio.current_time()
        if self._bar.disable and now_s - self._last_s >= EVERY_S:
            self._last_s = now_s
            click.echo(f"tsd: {self._done}{f' of {self._total}' if self._total else ''} {self._unit}", err=True)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """The bar out of the way of what is printed meanwhile."""
        with tqdm.external_write_mode(file=sys.stdout, nolock=True):
            yield

    def close(self) -> None:
        """Take the bar away."""
        self._bar.close()
