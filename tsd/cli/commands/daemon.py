"""`tsd serve`: its options and help."""

from typing import Any

import click

from tsd.cli.options import config_options, perform


@click.command()
@config_options
@click.option("--port", help="TCP port (tsd.network.port).")
@click.option("--bind", help="Address to listen on (tsd.network.bind).")
def serve(**given: Any) -> None:
    """Run the daemon until SIGTERM or Ctrl-C."""
    perform("tsd.cli.serve:serve", **given)
