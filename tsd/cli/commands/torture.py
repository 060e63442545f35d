"""`tsd torture`: its options and help."""

from pathlib import Path
from typing import Any

import click

from tsd.cli.options import FiniteRange, perform
from tsd.cli.settings import with_config
from tsd.cli.torture.options import ANYWHERE, CRASH, DEFAULTS, ON_BIGTABLE, ON_PROCESSES, ON_SERVERS, PAUSE
from tsd.config.loader import Loaded


class SecondsRange(click.ParamType):  # type: ignore[type-arg] # older ones take none
    """SHORTEST:LONGEST in seconds; one number sets both."""

    name = "S[:S]"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, float]:
        """Return both."""
        if isinstance(value, tuple):
            return value
        shortest, _, longest = str(value).partition(":")
        try:
            found = float(shortest), float(longest or shortest)
        except ValueError:
            self.fail(f"got {value!r}, wanted seconds, or SHORTEST:LONGEST", param, ctx)
        if not 0 < found[0] <= found[1]:
            self.fail(f"got {value!r}, wanted two times of which the second is no shorter", param, ctx)
        return found


@click.command()
@click.option(
    "--faults",
    default="",
    metavar="A,B=ROUNDS,…",
    help=f"Faults ({', '.join([*ANYWHERE, *ON_SERVERS, *ON_BIGTABLE, *ON_PROCESSES])}). "
    f"Default: all but {PAUSE} and {CRASH}.",
)
@click.option("--rounds", default=10, show_default=True, type=click.IntRange(1), help="Rounds of each fault.")
@click.option("--seed", type=int, help="Seed of all random choices. Default: random.")
@click.option("--daemons", default=2, show_default=True, type=click.IntRange(1), help="Concurrent daemons.")
@click.option("--duration", type=FiniteRange(0, min_open=True), help="Start no round after this many seconds.")
@click.option(
    "--outage", default="1:3", show_default=True, type=SecondsRange(), help="Length of the store's outages in seconds."
)
@click.option(
    "--warm-up", default=DEFAULTS.full_load, show_default=True, type=click.IntRange(0), help="Lines before an outage."
)
@click.option(
    "--restart",
    default="",
    metavar="COMMAND",
    help=f"Starts the servers again after {CRASH}. Default: their supervisor does.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    help="New working folder of the daemons. Default: next to the state folder.",
)
@click.option("--keep", is_flag=True, help="Keep folder and tables at the end.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@with_config
def torture(loaded: Loaded, **given: Any) -> None:
    """Load daemons with these settings, inject faults, and verify that all acknowledged points are stored.

    The daemons have their own folder, ports and, on servers, tables; yours are not touched. See docs/torture.md.

    Exit status 0: nothing acknowledged was lost, nothing was invented or doubled, and every daemon recovered by itself.
    1: a check failed, and folder and tables are kept; or no round was completed.
    """
    perform("tsd.cli.torture.command:torture", loaded, **given)
