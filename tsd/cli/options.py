"""The options that every command takes. This module imports no other part, so that `tsd --help` starts fast."""

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
