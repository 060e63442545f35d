"""`tsd entity`: its options and help."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from tsd.cli.options import config_options, perform
from tsd.cli.settings import with_config
from tsd.config.loader import Loaded


class EntityGroup(click.Group):
    """Takes the name of an entity for `show`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of some arguments."""
        if args and args[0] not in self.commands:
            args = ["show", *args]
        return super().resolve_command(ctx, args)


@click.group(cls=EntityGroup)
@config_options
def entity(**_: object) -> None:
    """Show entities, the values of tsd.entity.tag, such as hosts. `tsd entity NAME` is short for `show NAME`."""


@entity.command("list")
@click.option("--prefix", default="", help="Only names that begin with it.")
@click.option("--silent", "silent_for", metavar="AGE", help="Only those that have sent nothing for this long: 10m.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, as /api/entity answers.")
@with_config
def list_entities(loaded: Loaded, **given: Any) -> None:
    """List entities with the time of their newest point."""
    perform("tsd.cli.entity:list_entities", loaded, **given)


@entity.command()
@click.argument("name")
@click.option("--start", default="1d-ago", show_default=True, help="First time of points.")
@click.option("--end", help="Time after the last point.")
@click.option("--metrics", default="", help="Metrics by names or patterns: sys.*,proc.*")
@click.option("--versions", type=click.IntRange(1), help="Only this many points of each series, the newest.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, as /api/entity/NAME answers.")
@with_config
def show(loaded: Loaded, **given: Any) -> None:
    """Print the metadata and all series of an entity. Exit status 1 if it is unknown."""
    perform("tsd.cli.entity:show", loaded, **given)


@entity.command("set")
@click.argument("name")
@click.argument("values", nargs=-1, required=True, metavar="KEY=VALUE...")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: all metadata after the change.")
@with_config
def set_metadata(loaded: Loaded, **given: Any) -> None:
    """Set metadata of an entity. Other keys stay."""
    perform("tsd.cli.entity:set_metadata", loaded, **given)


@entity.command("unset")
@click.argument("name")
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@click.option("--all", "every", is_flag=True, help="All metadata of the entity.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: all metadata after the change.")
@with_config
def delete_metadata(loaded: Loaded, **given: Any) -> None:
    """Delete metadata of an entity: these keys, or with --all every one."""
    perform("tsd.cli.entity:delete_metadata", loaded, **given)


def _range_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
        click.option("--checkpoint", type=click.Path(path_type=Path), help="Default: a file in the state folder."),
        click.option("--until", default="now", show_default=True, help="Time after the last point."),
        click.option("--since", default="0", show_default=True, help="First time of points."),
        click.argument("metrics", nargs=-1, metavar="[METRIC]..."),
    ):
        command = option(command)
    return command


@entity.command()
@_range_options
@with_config
def build(loaded: Loaded, **given: Any) -> None:
    """Fill the tables of entities from the stored points of METRICs or all metrics. Daemons may run.

    It can be interrupted at any time, and resumes with the same arguments after the last metric that was done. To build
    again is safe. Exit status 1 if rows could not be read.
    """
    perform("tsd.cli.entity:build", loaded, **given)


@entity.command()
@_range_options
@with_config
def check(loaded: Loaded, **given: Any) -> None:
    """Compare the tables of entities with the stored points of METRICs or all metrics. Daemons may run.

    A point may be missing, different, or extra: between two stored points and not among them, or of a series without
    stored points. The newest value of a series may be missing or old. `tsd entity build` repairs all but extra points.
    Exit status 1 if anything differs.
    """
    perform("tsd.cli.entity:check", loaded, **given)
