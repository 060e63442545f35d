"""The options that every command has, and what they make of the configuration."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from tsd.config import Given, Loaded, load
from tsd.errors import BadConfig


def config_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command or group that takes --config, --data and --set."""
    for option in (
        click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set any key; may be given often."),
        click.option("--data", type=click.Path(path_type=Path), help="State folder (tsd.storage.path)."),
        click.option("--config", type=click.Path(path_type=Path), help="Configuration file."),
    ):
        command = option(command)
    return command


def with_config(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command that takes these options and gets a Loaded as its first argument."""

    @config_options
    @functools.wraps(command)
    def wrapper(config: Path | None, data: Path | None, settings: Sequence[str], **others: Any) -> Any:
        del config, data, settings  # `loaded` finds them, and those that stand before a sub-command
        return command(loaded(), **others)

    return wrapper


def loaded(extra: Sequence[Given] = ()) -> Loaded:
    """The configuration of the command that runs, its options and those before it; `extra` wins. Raises BadConfig."""
    config: Path | None = None
    data: Path | None = None
    settings: list[str] = []
    context: click.Context | None = click.get_current_context()
    while context is not None:
        config = config or context.params.get("config")
        data = data or context.params.get("data")
        settings = [*context.params.get("settings", ()), *settings]
        context = context.parent
    given, malformed = overrides(data, settings)
    try:
        found = load(config, [*given, *extra])
    except BadConfig as exc:
        raise BadConfig([*exc.problems, *malformed]) from exc
    if malformed:
        raise BadConfig(malformed)
    return found


def overrides(data: Path | None, settings: Sequence[str]) -> tuple[list[Given], list[str]]:
    """Settings of a command line, those of options last; and what is wrong with those that are none."""
    given: list[Given] = []
    malformed: list[str] = []
    for setting in settings:
        key, equals, value = setting.partition("=")
        if equals:
            given.append(Given("--set", key.strip(), value))
        else:
            malformed.append(f"--set {setting}: wanted KEY=VALUE")
    if data is not None:
        given.append(Given("--data", "tsd.storage.path", str(data)))
    return given, malformed


def shown(loaded: Loaded) -> str:
    """Where settings came from, for people."""
    return str(loaded.source) if loaded.source else "the defaults (no configuration file)"
