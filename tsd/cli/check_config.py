"""`tsd check-config`: everything that is wrong with a configuration, at once."""

import click

from tsd.cli.options import shown, with_config
from tsd.config import Config, Loaded, keys


@click.command("check-config")
@click.option("--show", is_flag=True, help="Print every key with the value it has.")
@with_config
def check_config(loaded: Loaded, show: bool) -> None:
    """Say whether a configuration can be used, and what in it has no effect. Exit status 2 where it cannot."""
    if show:
        for key, field in keys().items():
            click.echo(f"{key} = {_spelt(getattr(loaded.config, field.name), loaded.config, field.name)}")
    if loaded.ignored.keys:
        click.echo(f"without meaning here: {' '.join(loaded.ignored.keys)}", err=True)
    for key, consequence in loaded.ignored.not_done.items():
        click.echo(f"{key} is not done by this version: {consequence}", err=True)
    click.echo(f"{shown(loaded)}: no problem found", err=True)


def _spelt(value: object, config: Config, name: str) -> str:
    """A value as a file would hold it."""
    if name == "auto_create_metrics":
        value = config.creates_metrics
    return (
        str(getattr(value, "value", value)).lower() if isinstance(value, bool) else str(getattr(value, "value", value))
    )
