"""Commands on whole tables, `tsd create-tables`, `compact`, `rollup`, `index`, `copy`, `backup`, `restore` and `fsck`:
their options and help."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from tsd.cli.options import FiniteRange, config_options, perform
from tsd.cli.settings import with_config
from tsd.config.loader import Loaded

REPAIRS = {
    "fix": "Repair what is found, as far as the flags below allow.",
    "compact": "Join the cells of every valid row.",
    "resolve_duplicates": "Of several points with the same time, keep one.",
    "last_write_wins": "Keep the point of the newest cell, as queries do. Always on with tsd.storage.fix_duplicates.",
    "delete_orphans": "Delete rows with UIDs that have no name.",
    "delete_unknown_columns": "Delete cells of unknown kinds.",
    "delete_bad_values": "Delete points without a valid number.",
    "delete_bad_rows": "Delete rows with invalid keys.",
    "delete_bad_compacts": "Delete cells of several points, and blocks, that cannot be decoded.",
}


@click.command()
@click.option(
    "--to", required=True, metavar="TARGET",
    help="embedded:FOLDER (a state folder), hbase:HOST:PORT[,HOST:PORT] (Thrift gateways), "
    "cassandra:HOST:PORT[,HOST:PORT] (nodes), bigtable:PROJECT/INSTANCE, or a configuration file.",
)  # fmt: skip
@click.option(
    "--to-set", multiple=True, metavar="KEY=VALUE", help="Set any key of the target, for example the name of a table."
)
@click.option(
    "--checkpoint", type=click.Path(path_type=Path),
    help="File for the progress of the copy (default: in the state folder of the embedded side).",
)  # fmt: skip
@click.option(
    "--rename", "renames", multiple=True, metavar="PATTERN=REPLACEMENT",
    help="From or to another layout's tables: replace what matches in names that the target cannot spell.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@with_config
def copy(loaded: Loaded, **given: Any) -> None:
    """Copy names and rows of this store to another, with their write times, and read back what was written.

    An interrupted copy continues when it is run again. A later run copies what is new: copy once while the daemon runs,
    stop the daemon, and copy again. Nothing is deleted in the target, and a target with other names for the same UIDs
    is refused. Exit status 1 if something cannot be read back.

    From or to the tables of another layout (tsd.storage.layout) points are copied metric by metric. Exit status 1 if
    series have names that the target cannot spell, or there are texts, annotations or histograms, which are not copied.
    Times to live are not copied: the number of points with one is printed.
    """
    perform("tsd.cli.copy:copy", loaded, **given)


@click.command("create-tables")
@click.option(
    "--compression",
    type=click.Choice(["NONE", "GZ", "SNAPPY", "LZO", "LZ4", "ZSTD"], case_sensitive=False),
    help="Compression of HBase (NONE; others than GZ must be installed on every region server) or Cassandra (ZSTD).",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@with_config
def create_tables(loaded: Loaded, **given: Any) -> None:
    """Create the tables that are absent. Existing ones stay as they are."""
    perform("tsd.cli.copy:create_tables", loaded, **given)


@click.command()
@click.argument("metrics", nargs=-1, metavar="[METRIC]...")
@click.option("--since", default="0", show_default=True, help="First hour: e.g. 2d-ago, 1700000000, 2023/11/14-22:00.")
@click.option("--until", default="now", show_default=True, help="Last hour; the last five minutes are excluded.")
@click.option("--dry-run", is_flag=True, help="Write nothing; print what would change.")
@click.option("--rate", type=FiniteRange(0, min_open=True), help="Maximum rows per second.")
@click.option("--checkpoint", type=click.Path(path_type=Path), help="Default: compact.json in the state folder.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@with_config
def compact(loaded: Loaded, **given: Any) -> None:
    """Compact each row of past hours to one cell, for METRICs or all metrics. Queries read the same points.

    It can be interrupted at any time, and run while daemons and other passes run. With the same arguments it resumes
    where it was interrupted. Exit status 1 if a row or a block is damaged (it is printed and left unchanged), 3 if the
    store fails for longer than a minute.
    """
    perform("tsd.cli.compact:compact", loaded, **given)


@click.group()
@config_options
def rollup(**_: object) -> None:
    """Write rollups: sum, count, minimum and maximum of each interval of each series."""


@rollup.command("build")
@click.argument("metrics", nargs=-1, metavar="[METRIC]...")
@click.option("--start", default="0", show_default=True, help="Intervals that begin earlier are left as they are.")
@click.option("--end", default="now", show_default=True, help="And those that end later, or in the last five minutes.")
@click.option("--interval", "intervals", multiple=True, help="As configured, such as 1h; repeatable. Default: all.")
@click.option("--pause", type=FiniteRange(0), help="Pause after each part, as a share of the time that it took.")
@click.option("--clear", is_flag=True, help="First delete the rollups of METRICs, also those of deleted points.")
@click.option("--checkpoint", type=click.Path(path_type=Path), help="Default: rollup-build.json in the state folder.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@with_config
def build_rollups(loaded: Loaded, **given: Any) -> None:
    """Compute the rollups of raw points of METRICs or all metrics, and write them into the tables of
    tsd.rollups.config.

    It can be interrupted at any time, and resumes with the same arguments. To build again is safe: cells are replaced.
    Those of intervals whose points were all deleted stay without --clear. Intervals that tsd.retention.rules may have
    shortened are left as they are. The default pause is 0, or 1 while a daemon has the embedded store open. Exit status
    1 if a row could not be read (it is printed), 3 if the store fails for longer than a minute.
    """
    perform("tsd.cli.rollup:build", loaded, **given)


@click.group()
def index(**_: object) -> None:
    """Rebuild the list of series of Heroic's table, or of rows of events and days."""


@click.command()
@click.option("--day", metavar="YYYYMMDD", help="The day, in UTC (default: yesterday).")
@click.option("--table", metavar="NAME", help="The table (default: the only one of tsd.tall.tables with {day}).")
@click.option("--keep", type=click.IntRange(min=1), metavar="DAYS", help="Then drop the tables of older days.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@with_config
def export(loaded: Loaded, **given: Any) -> None:
    """Copy a day's rows of a table with {day} in tsd.tall.tables to a table of that day, such as SENSOR_20140110.

    Run it each night: what reads all rows of a day then scans that table. Run it again to bring in what came late, was
    amended or deleted since: the number of changed cells is printed. An interrupted run continues with the same
    arguments. The daemon of this state folder first writes its pending points. On the embedded store, tables of older
    days are emptied.
    """
    perform("tsd.cli.export:export", loaded, **given)


@index.command("build")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@with_config
def build_index(loaded: Loaded, **given: Any) -> None:
    """List the series of all rows of tsd.heroic.table in tsd.heroic.series_table, or of those of tsd.tall.tables in
    tsd.tall.series_table. Daemons may run.

    Needed once for rows that other programs wrote, such as Heroic, and if the list is lost. Of Heroic's rows only the
    keys are read. An interrupted run may be repeated. Exit status 1 if keys or columns cannot be read.
    """
    perform("tsd.cli.index:build", loaded, **given)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    metavar="N",
    help="Before the backup, remove this daemon's interrupted ones; after it, all but its newest N.",
)
@click.option("--list", "as_list", is_flag=True, help="Print the backups in FOLDER, and make none.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@with_config
def backup(loaded: Loaded, **given: Any) -> None:
    """Make a backup of the state folder in FOLDER, also while the daemon runs.

    The backup is a folder named by the time. It has a snapshot of the embedded store, and the lines of the journal that
    are not in the store yet. Nothing that was acknowledged before the command began is missing. On the file system of
    the state folder files are linked, not copied; elsewhere files that an earlier backup in FOLDER has are linked to
    it. Exit status 1 with --list if a backup is not complete.
    """
    perform("tsd.cli.backup:backup", loaded, **given)


@click.command()
@click.argument("source", metavar="BACKUP", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--check", is_flag=True, help="Read the backup in full, and restore nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@with_config
def restore(loaded: Loaded, **given: Any) -> None:
    """Restore a backup to the state folder, which must be empty or absent, and read it back in full.

    BACKUP is one backup, or the folder of several, of which the newest complete one is taken. A restoration that was
    interrupted starts over. The next start of the daemon stores the lines of the journal.
    """
    perform("tsd.cli.backup:restore", loaded, **given)


def repairs(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say what is repaired."""
    for name, text in reversed(REPAIRS.items()):
        command = click.option(f"--{name.replace('_', '-')}", name, is_flag=True, help=text)(command)
    return command


@click.command()
@click.argument("words", nargs=-1, metavar="[START [END] FUNC METRIC [TAGK=TAGV]...]")
@click.option("--full-scan", is_flag=True, help="Check the whole table.")
@repairs
@click.option("--fix-all", is_flag=True, help="--fix and all of the flags above except --last-write-wins.")
@click.option("--force", is_flag=True, help="Delete rows even if this configuration matches no row.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per finding, and one for the summary.")
@click.option("--threads", type=click.IntRange(1), hidden=True, help="OpenTSDB's option, without effect.")
@click.option(
    "--sync", is_flag=True, hidden=True, help="OpenTSDB's option, without effect: every repair is synchronous."
)
@with_config
def fsck(loaded: Loaded, **given: Any) -> None:
    """Find damaged rows and repair them, in the whole table, or for metrics and times as in `tsd scan`.

    Without --fix or --fix-all nothing is changed. Daemons may keep writing. Exit status 1 if there are errors, even if
    all were repaired.
    """
    perform("tsd.cli.fsck:fsck", loaded, **given)
