"""The options that every command has, and what they make of the configuration."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from tsd.config import Given, Loaded, load
from tsd.errors import BadConfig


def with_config(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command that takes --config, --data and --set; it gets them as its first argument, a Loaded."""

    @click.option("--config", type=click.Path(path_type=Path, dir_okay=False), help="Configuration file.")
    @click.option("--data", type=click.Path(path_type=Path, file_okay=False), help="State folder (tsd.storage.path).")
    @click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set any key; may be given often.")
    @functools.wraps(command)
    def wrapper(config: Path | None, data: Path | None, settings: Sequence[str], **others: Any) -> Any:
        return command(load(config, overrides(data, settings)), **others)

    return wrapper


def overrides(data: Path | None, settings: Sequence[str], extra: Sequence[Given] = ()) -> list[Given]:
    """Settings of a command line, those of options last; raises BadConfig."""
    given = []
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise BadConfig([f"--set {setting}: wanted KEY=VALUE"])
        given.append(Given("--set", key.strip(), value))
    if data is not None:
        given.append(Given("--data", "tsd.storage.path", str(data)))
    return [*given, *extra]


def shown(loaded: Loaded) -> str:
    """Where settings came from, for people."""
    return str(loaded.source) if loaded.source else "the defaults (no configuration file)"
