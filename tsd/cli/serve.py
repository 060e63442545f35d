"""`tsd serve`: run the daemon in the foreground.

`tsd version`.

`tsd check-config`: print all errors of a configuration.

`tsd health`: print the health checks of a running daemon.
"""

import gc
import sys
import time
from collections.abc import Mapping

import click
import trio

from tsd import version_reply
from tsd.api.health import CHECKS, OK
from tsd.cli.context import loaded, shown, with_config
from tsd.cli.options import config_options
from tsd.config import log
from tsd.config.loader import Config, Given, Loaded, keys
from tsd.daemon import lifecycle
from tsd.daemon.wiring import control_path
from tsd.errors import TsdError
from tsd.ingest import series
from tsd.store.remote import ControlClient


@click.command()
@config_options
@click.option("--port", help="TCP port (tsd.network.port).")
@click.option("--bind", help="Address to listen on (tsd.network.bind).")
def serve(port: str | None, bind: str | None, **_: object) -> None:
    """Run the daemon until SIGTERM or Ctrl-C."""
    named = (("--port", "tsd.network.port", port), ("--bind", "tsd.network.bind", bind))
    given = [Given(option, key, value) for option, key, value in named if value is not None]
    settings = loaded(given)
    log.configure(settings.config.log_level, settings.config.log_format, time.monotonic)

    trio.run(lifecycle.serve, settings, trio.Event(), _tune_collector, lambda: loaded(given))


def _tune_collector(*_: object) -> None:
    """Run Python's cycle collector less often: it would scan large lists again and again, which never form cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 50, 100)


@click.command()
@with_config
def version(loaded: Loaded) -> None:  # noqa: ARG001 - every command takes the same options
    """Print the version, like the telnet command `version`."""
    click.echo(version_reply(by_loop=series.HAS_LOOP), nl=False)


@click.command("check-config")
@click.option("--show", is_flag=True, help="Print every key with its value.")
@with_config
def check_config(loaded: Loaded, show: bool) -> None:
    """Check a configuration, and print settings without effect. Exit status 2 if it has errors."""
    if show:
        for key, field in keys().items():
            click.echo(f"{key} = {_spelt(getattr(loaded.config, field.name), loaded.config, field.name)}")
    if loaded.ignored.keys:
        click.echo(f"ignored: {' '.join(loaded.ignored.keys)}", err=True)
    for key, consequence in loaded.ignored.unsupported.items():
        click.echo(f"{key} is not supported: {consequence}", err=True)
    click.echo(f"{shown(loaded)}: no problem found", err=True)


def _spelt(value: object, config: Config, name: str) -> str:
    """Return a value as a file spells it."""
    if name == "auto_create_metrics":
        value = config.creates_metrics
    return (
        str(getattr(value, "value", value)).lower() if isinstance(value, bool) else str(getattr(value, "value", value))
    )


TIMEOUT_S = 10.0  # for a running daemon's response; the daemon waits up to a third of it for the store


@click.command()
@click.argument("which", type=click.Choice(list(CHECKS)), default="ready")
@with_config
def health(loaded: Loaded, which: str) -> None:
    """Print whether the daemon of this state folder passes the check WHICH. Exit status 1, with the reasons, if not.

    It uses the control socket, so it needs no port and no token. HTTP has the same at /health/WHICH.
    """
    found = trio.run(_check_health, loaded.config, which)
    for check, result in found.items():
        click.echo(f"{check}: {result}")
    sys.exit(0 if found["status"] == OK else 1)


async def _check_health(config: Config, which: str) -> Mapping[str, str]:
    path = control_path(config)
    with trio.move_on_after(TIMEOUT_S):
        try:
            caller = await ControlClient.connect(path)
        except OSError as exc:
            raise TsdError(f"no daemon answers at {path}: {exc.strerror or exc}") from exc
        try:
            found: Mapping[str, str] = await caller.call("health", which=which)
            return found
        finally:
            await caller.aclose()
    raise TsdError(f"the daemon at {path} does not answer within {TIMEOUT_S:g} s")
