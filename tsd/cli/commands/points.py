"""Commands on points, `tsd import`, `scan`, `delete` and `retention`: their options and help."""

from typing import Any

import click

from tsd.cli.options import perform
from tsd.cli.settings import with_config
from tsd.config.loader import Loaded


@click.command("import")
@click.argument("paths", nargs=-1, required=True, metavar="FILE...", type=click.Path(allow_dash=True))
@click.option("--auto-metric", is_flag=True, help="Assign UIDs to unknown metrics.")
@click.option("--rejects", type=click.File("wb"), help="Write refused lines to this file, each below its reason.")
@click.option(
    "--skip-errors", is_flag=True, hidden=True, help="OpenTSDB's option, without effect: errors are always skipped."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@with_config
def import_lines(loaded: Loaded, **given: Any) -> None:
    """Store the points of files with lines METRIC TIME VALUE TAGK=TAGV…; .gz files are unzipped; - is standard input.

    Blank lines and lines that start with # are skipped. Refused lines are printed with the reason, and so are files
    that cannot be read. The rest is stored, and the exit status is 1.
    """
    perform("tsd.cli.importer:import_lines", loaded, **given)


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="START [END] FUNC METRIC [TAGK=TAGV]...")
@click.option("--import", "as_lines", is_flag=True, help="Print lines for `tsd import`.")
@click.option("--delete", is_flag=True, help="Like --import, and delete all cells of each printed row.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per row, with its points.")
@with_config
def scan(loaded: Loaded, **given: Any) -> None:
    """Print the rows of a metric, in whole hours. FUNC has no effect; it is there for compatibility with OpenTSDB.

    START and END are e.g. 1h-ago, 1700000000 or 2023/11/14-22:13:20. Exit status 1 if a row cannot be read; such a
    row is not deleted either. `tsd delete` deletes exact time ranges, and shows the points first.
    """
    perform("tsd.cli.scan:scan", loaded, **given)


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="METRIC [TAGK=TAGV]...")
@click.option("--since", required=True, help="First time to delete, e.g. 2023/11/14-22:13:20, 1700000000 or 30d-ago.")
@click.option("--until", required=True, help="First time to keep; `now` deletes everything since --since.")
@click.option("--yes", is_flag=True, help="Delete. Without it nothing is changed.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@with_config
def delete(loaded: Loaded, **given: Any) -> None:
    """Show the points of a metric in a time range, and with --yes delete them.

    This applies to all series that have at least these tags. Of an hour that is only partly in the range, the other
    points are kept. Of a whole hour, annotations and unreadable cells are deleted too. Names keep their UIDs. Exit
    status 1 if points remain: a partly covered hour cannot be read, or points were written meanwhile.

    With tsd.entity.enabled the points also leave the tables of entities, and so do those that only these tables have.
    """
    perform("tsd.cli.delete:delete", loaded, **given)


@click.command()
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, and delete nothing.")
@click.option("--exact", is_flag=True, help="With --dry-run: count everything instead of a sample of the hours.")
@click.option("--trust-clock", is_flag=True, help="The clock is right, although it has jumped ahead.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@with_config
def retention(loaded: Loaded, **given: Any) -> None:
    """Delete the points that have expired by tsd.retention.rules, which the daemon does once an hour.

    --dry-run counts what that would be: rows, points, and bytes before compression. Its numbers come from a sample of
    the hours. Exit status 1 if nothing was deleted because the clock is not trusted.
    """
    perform("tsd.cli.retention:retention", loaded, **given)
