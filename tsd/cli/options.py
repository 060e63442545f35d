"""What every command uses to start fast: the common options, and objects that are imported when they are used. This
module imports no other part."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click


def config_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options --config, --data and --set to a command or group."""
    for option in (
        click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set any key. Repeatable."),
        click.option("--data", type=click.Path(path_type=Path), help="State folder (tsd.storage.path)."),
        click.option("--config", type=click.Path(path_type=Path), help="Configuration file."),
    ):
        command = option(command)
    return command


def imported(place: str) -> Any:
    """Return the object `module:name`. Places are constants in `tsd.cli`."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
