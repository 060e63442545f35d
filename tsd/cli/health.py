"""`tsd health`: what the daemon of a state folder can do at the moment, for people and scripts."""

import sys
from collections.abc import Mapping

import click
import trio

from tsd.api.health import ASKED, OK
from tsd.assembly import control_path
from tsd.cli.options import with_config
from tsd.config import Config, Loaded
from tsd.errors import TsdError
from tsd.store.remote import Caller

PATIENCE_S = 10.0  # with a daemon that runs and does not answer: a store that does not costs it a third


@click.command()
@click.argument("which", type=click.Choice(list(ASKED)), default="ready")
@with_config
def health(loaded: Loaded, which: str) -> None:
    """Say whether the daemon of this state folder is ready, or able to WHICH; exit status 1, and why, where it is not.

    It asks by the control socket: no port, no token. The same is at /health/WHICH over HTTP.
    """
    found = trio.run(_ask, loaded.config, which)
    for check, told in found.items():
        click.echo(f"{check}: {told}")
    sys.exit(0 if found["status"] == OK else 1)


async def _ask(config: Config, which: str) -> Mapping[str, str]:
    path = control_path(config)
    with trio.move_on_after(PATIENCE_S):
        try:
            caller = await Caller.connect(path)
        except OSError as exc:
            raise TsdError(f"no daemon answers at {path}: {exc.strerror or exc}") from exc
        try:
            found: Mapping[str, str] = await caller.ask("health", which=which)
            return found
        finally:
            await caller.aclose()
    raise TsdError(f"the daemon at {path} does not answer within {PATIENCE_S:g} s")
