"""`tsd serve`: the daemon, in the foreground."""

import time
from collections.abc import Sequence
from pathlib import Path

import click
import trio

from tsd import daemon, log
from tsd.cli.options import overrides
from tsd.config import Given, load


@click.command()
@click.option("--config", type=click.Path(path_type=Path, dir_okay=False), help="Configuration file.")
@click.option("--data", type=click.Path(path_type=Path, file_okay=False), help="State folder (tsd.storage.path).")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set any key; may be given often.")
@click.option("--port", help="TCP port (tsd.network.port).")
@click.option("--bind", help="Address to listen on (tsd.network.bind).")
def serve(config: Path | None, data: Path | None, settings: Sequence[str], port: str | None, bind: str | None) -> None:
    """Run the daemon until SIGTERM or Ctrl-C."""
    named = (("--port", "tsd.network.port", port), ("--bind", "tsd.network.bind", bind))
    extra = [Given(option, key, value) for option, key, value in named if value is not None]
    loaded = load(config, overrides(data, settings, extra))
    log.configure(loaded.config.log_level, loaded.config.log_format, time.monotonic)

    async def run() -> None:
        await daemon.serve(loaded, trio.Event(), lambda *_: None)

    trio.run(run)
