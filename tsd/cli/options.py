"""What every command uses to start fast: the common options, and objects that are imported when they are used. This
module imports no other part."""

import gc
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click


def config_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options --config, --data and --set to a command or group."""
    for option in (
        click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set any key. Repeatable."),
        click.option("--data", type=click.Path(), help="State folder (tsd.storage.path)."),
        click.option("--config", type=click.Path(path_type=Path), help="Configuration file."),
    ):
        command = option(command)
    return command


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
