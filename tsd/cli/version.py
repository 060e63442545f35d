"""`tsd version`."""

import click

from tsd.build import version_reply
from tsd.cli.options import with_config
from tsd.config import Loaded
from tsd.ingest import compiled


@click.command()
@with_config
def version(loaded: Loaded) -> None:  # noqa: ARG001 - every command takes the same options
    """Print the version, as the daemon's own command does."""
    click.echo(version_reply(by_loop=compiled.HAS), nl=False)
