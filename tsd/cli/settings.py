"""The configuration of a command, from its options and those before its name."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from tsd.cli.options import config_options
from tsd.config.loader import Given, Loaded
from tsd.daemon.settings import load_config
from tsd.errors import BadConfig


def with_config(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `config_options` to a command, and pass a Loaded as its first argument.

    What the command finds wrong with a setting is raised with the place of that setting.
    """

    @config_options
    @functools.wraps(command)
    def wrapper(config: Path | None, data: str | None, settings: Sequence[str], **others: Any) -> Any:
        del config, data, settings  # `loaded` reads them, and those before a sub-command
        found = loaded()
        with found.placed_problems():
            return command(found, **others)

    return wrapper


def loaded(extra: Sequence[Given] = ()) -> Loaded:
    """Return the configuration of the current command, from its options and those before it. Raise BadConfig.

    `extra` overrides all other settings.
    """
    config: Path | None = None
    data: str | None = None
    settings: list[str] = []
    context: click.Context | None = click.get_current_context()
    while context is not None:
        config = config or context.params.get("config")
        data = context.params.get("data") if data is None else data
        settings = [*context.params.get("settings", ()), *settings]
        context = context.parent
    given, malformed = overrides(data, settings)
    try:
        found = load_config(config, [*given, *extra])
    except BadConfig as exc:
        raise BadConfig([*exc.problems, *malformed]) from exc
    if malformed:
        raise BadConfig(malformed)
    return found


def overrides(data: str | None, settings: Sequence[str], option: str = "--set") -> tuple[list[Given], list[str]]:
    """Return the settings of a command line, those of options last, and an error for each malformed one.

    `option` is the option of `settings`, for messages.
    """
    given: list[Given] = []
    malformed: list[str] = []
    for setting in settings:
        key, equals, value = setting.partition("=")
        if equals:
            given.append(Given(option, key.strip(), value))
        else:
            malformed.append(f"{option} {setting}: wanted KEY=VALUE")
    if data is not None:
        given.append(Given("--data", "tsd.storage.path", data))
    return given, malformed


def shown(loaded: Loaded) -> str:
    """Return the source of the settings, for messages."""
    return str(loaded.source) if loaded.source else "the defaults (no configuration file)"
