"""The command `tsd`: one module per command, each a thin wrapper."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import click

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy would start threads that no command needs

from tsd import revision, version
from tsd.cli.options import config_options, drop_output, imported
from tsd.errors import BadConfig, DaemonRuns, NewerState, StoreError, TsdError

STORE_FAILED = 3  # exit status if HBase or the embedded store failed
FOLDER_TAKEN = 4  # exit status if another process or a newer version uses the state folder
INTERRUPTED = 130  # exit status after Ctrl-C, as of a shell


class CommandEntry(NamedTuple):
    """A command: where it is defined, and its line in the help."""

    place: str  # module:object
    summary: str


SECTIONS = {
    "Daemon": {
        "serve": CommandEntry("tsd.cli.commands.daemon:serve", "Run the daemon until SIGTERM or Ctrl-C."),
        "health": CommandEntry("tsd.cli.status:health", "Print whether the running daemon is healthy."),
        "top": CommandEntry("tsd.cli.top:top", "Show the busiest clients of the running daemon."),
        "hot": CommandEntry("tsd.cli.hot:hot", "Show the row keys that are written and read most."),
        "rejected": CommandEntry("tsd.cli.rejected:rejected", "List refused lines, and send them again."),
        "journal": CommandEntry("tsd.cli.journal:journal", "Print the lines of the journal's files."),
        "check-config": CommandEntry("tsd.cli.status:check_config", "Report every problem of a configuration."),
        "token": CommandEntry("tsd.cli.token:token", "Manage the accounts of tsd.auth.file."),
        "version": CommandEntry("tsd.cli.status:version", "Print the version, like the telnet command."),
    },
    "Points": {
        "send": CommandEntry("tsd.cli.send:send", "Send lines to a daemon and print its replies."),
        "import": CommandEntry("tsd.cli.commands.points:import_lines", "Store the lines of files."),
        "query": CommandEntry("tsd.cli.query:query", "Print or draw the points of a query."),
        "scan": CommandEntry("tsd.cli.commands.points:scan", "Print rows, or their points as lines to import."),
        "delete": CommandEntry("tsd.cli.commands.points:delete", "Show the points of a range, and delete them."),
        "entity": CommandEntry(
            "tsd.cli.commands.entity:entity", "Show all about one host; build and check tables of entities."
        ),
        "retention": CommandEntry("tsd.cli.commands.points:retention", "Show what has expired, and delete it."),
    },
    "Names": {
        "uid": CommandEntry("tsd.cli.commands.names:uid", "Look up, assign, rename, delete and check names."),
        "mkmetric": CommandEntry("tsd.cli.commands.names:mkmetric", "Assign UIDs to metrics."),
    },
    "Store": {
        "create-tables": CommandEntry("tsd.cli.commands.store:create_tables", "Create the tables that are absent."),
        "compact": CommandEntry("tsd.cli.commands.store:compact", "Make one cell of each row of past hours."),
        "rollup": CommandEntry("tsd.cli.commands.store:rollup", "Write rollups of past points."),
        "index": CommandEntry("tsd.cli.commands.store:index", "Rebuild the list of series of Heroic's and tall rows."),
        "export": CommandEntry("tsd.cli.commands.store:export", "Copy a day's rows to a table of that day."),
        "copy": CommandEntry("tsd.cli.commands.store:copy", "Copy all tables to another store."),
        "backup": CommandEntry(
            "tsd.cli.commands.store:backup", "Back up the embedded store and the journal, while it runs."
        ),
        "restore": CommandEntry("tsd.cli.commands.store:restore", "Restore a backup, and read it back."),
        "fsck": CommandEntry("tsd.cli.commands.store:fsck", "Find and repair broken rows."),
        "torture": CommandEntry("tsd.cli.commands.torture:torture", "Inject faults, and check that nothing is lost."),
    },
}
DEFERRED = (
    "backup", "compact", "copy", "delete", "entity", "export", "fsck", "importer", "index", "prune", "query_picture",
    "query_store", "retention", "rollup", "scan", "serve", "torture.command", "uid",
)  # modules of tsd.cli that commands import when they run  # fmt: skip
COMMANDS = {name: entry for section in SECTIONS.values() for name, entry in section.items()}


class LazyGroup(click.Group):
    """Imports the module of a command when the command runs, and lists commands without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import a command. None: there is no such command."""
        return find_command(cmd_name) if cmd_name in COMMANDS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of some arguments. A wrong name is an error with the most similar command."""
        if args[0] not in COMMANDS and not ctx.resilient_parsing:
            near = imported("difflib:get_close_matches")(args[0], COMMANDS, n=1)
            hint = "".join([f" Did you mean {name!r}?" for name in near])
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the sections of the help."""
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(name.ljust(max(map(len, COMMANDS))), entry.summary) for name, entry in commands.items()]
                )

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Parse the command line. `--help` and `--version` print."""
        with _printing():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        with _printing():
            return super().invoke(ctx)


@contextmanager
def _printing() -> Iterator[None]:
    """Flush what the block prints. If its reader is gone, for example `head`, exit with status 0. Raise TsdError if it
    cannot be written, for example to a full disk."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        drop_output()
        sys.exit(0)
    except OSError as exc:
        drop_output()
        raise TsdError(f"the command ended early: {exc}") from exc


def find_command(name: str) -> click.Command:
    """Import a command."""
    command: click.Command = imported(COMMANDS[name].place)
    return command


def import_all() -> None:
    """Import every command: a server that forks commands does it once."""
    for name in COMMANDS:
        find_command(name)
    for name in DEFERRED:
        imported(f"tsd.cli.{name}:__name__")


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(f"tsd {version()}, commit {revision()}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version,
    help="Show the version and exit.",
)  # fmt: skip
@config_options
def tsd(**_: object) -> None:
    """An OpenTSDB-compatible time-series daemon, on an embedded RocksDB, HBase, Cassandra or Bigtable.

    Every command takes --config, --data and --set as well, before or after its name. conf/tsd.conf describes the keys.
    """


def _open_closed_streams() -> None:
    """Open standard streams that are closed, so that no other file gets their numbers: a library that prints would
    write into it. Reading and printing then fail, and errors are discarded."""
    for number, (name, access) in enumerate({"stdin": os.O_WRONLY, "stdout": os.O_RDONLY, "stderr": os.O_RDWR}.items()):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, access)
            setattr(sys, name, open(opened, "w" if number else "r", closefd=False))  # noqa: SIM115


def main() -> None:
    """Run a command. Print errors to standard error and exit with their status."""
    _open_closed_streams()
    try:
        status = tsd.main(prog_name="tsd", standalone_mode=False)
        sys.exit(status if isinstance(status, int) else 0)
    except click.ClickException as exc:
        exc.show()
        sys.exit(exc.exit_code)
    except click.Abort:
        sys.exit(INTERRUPTED)
    except BaseExceptionGroup as exc:
        if exc.split(KeyboardInterrupt)[1] is not None:
            raise
        sys.exit(INTERRUPTED)  # Ctrl-C in a nursery
    except BadConfig as exc:
        for problem in exc.problems:
            click.echo(f"tsd: {problem}", err=True)
        sys.exit(2)
    except StoreError as exc:
        click.echo(f"tsd: {exc}", err=True)
        sys.exit(STORE_FAILED)
    except (DaemonRuns, NewerState) as exc:
        click.echo(f"tsd: {exc}", err=True)
        sys.exit(FOLDER_TAKEN)
    except TsdError as exc:
        click.echo(f"tsd: {exc}", err=True)
        sys.exit(1)
