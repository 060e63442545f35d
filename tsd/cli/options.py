"""What every command uses to start fast: the common options, and objects that are imported when they are used. This
module imports no other part."""

import gc
import importlib
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click


def config_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options --config, --data and --set to a command or group."""
    for option in (
        click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set any key. Repeatable."),
        click.option("--data", type=click.Path(), help="State folder (tsd.storage.path)."),
        click.option(
            "--config",
            type=click.Path(path_type=Path),
            help="Configuration file (default: tsd.conf in the working folder, else /etc/tsd/tsd.conf).",
        ),
    ):
        command = option(command)
    return command


class FiniteRange(click.FloatRange):
    """A range of numbers, without infinity and `nan`, which click accepts."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number. Raise UsageError."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


def drop_output() -> None:
    """Discard what is buffered for standard output, and what is printed later."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def closed_output_ignored() -> Iterator[None]:
    """Print in the block what a command has done or found. Its exit status is the same if the output has no reader."""
    try:
        yield
    except BrokenPipeError:
        drop_output()


def imported(place: str) -> Any:
    """Import and return the object `module:name`. Places are constants in `tsd.cli`.

    Nothing of what an import creates is garbage: to look for it would take a tenth of the time.
    """
    module, _, name = place.partition(":")
    gc.disable()
    try:
        return getattr(importlib.import_module(module), name)
    finally:
        gc.freeze()
        gc.enable()


def perform(place: str, *words: Any, **given: Any) -> None:
    """Do the work of a command: call the function `module:name`."""
    imported(place)(*words, **given)
