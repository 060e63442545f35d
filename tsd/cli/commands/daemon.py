"""`tsd serve`: its options and help."""

import signal
from typing import Any

import click

from tsd.cli.options import config_options, perform


@click.command()
@config_options
@click.option("--port", help="TCP port (tsd.network.port).")
@click.option("--bind", help="Address to listen on (tsd.network.bind).")
def serve(**given: Any) -> None:
    """Run the daemon until SIGTERM or Ctrl-C."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})  # it would end the process until it is handled
    perform("tsd.cli.serve:serve", **given)
