"""`tsd uid` and `tsd mkmetric`: their options and help."""

from typing import Any

import click

from tsd.cli.options import config_options, perform
from tsd.cli.settings import with_config
from tsd.codec.names import Kind
from tsd.config.loader import Loaded

KINDS = [kind.value for kind in Kind]


class UidGroup(click.Group):
    """Treats a word that is not a subcommand as a name to look up."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands:
            args = ["lookup", *args]
        return super().resolve_command(ctx, args)


@click.group(cls=UidGroup)
@config_options
def uid(**_: object) -> None:
    """Look names and UIDs up, assign, rename, delete and check them.

    `tsd uid [KIND] NAME...` prints what is found; a number is also looked up as a UID. KIND is metrics, tagk or tagv,
    and is required if the first of several NAMEs is one of these words.
    """


@uid.command("rename")
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("old")
@click.argument("new")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@with_config
def rename_uid(loaded: Loaded, **given: Any) -> None:
    """Give the UID of OLD the name NEW, which must not have a UID. All data of OLD is then found as NEW."""
    perform("tsd.cli.uid:rename_uid", loaded, **given)


@uid.command("delete")
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@with_config
def delete_uid(loaded: Loaded, **given: Any) -> None:
    """Delete a name and its UID. Its data stays but cannot be queried: delete it first, with `tsd delete`.

    `tsd fsck --full-scan --fix --delete-orphans` deletes remaining rows.
    """
    perform("tsd.cli.uid:delete_uid", loaded, **given)


@uid.command("fsck")
@click.argument("words", nargs=-1, type=click.Choice(["fix", "delete_unknown"]), metavar="[fix] [delete_unknown]")
@click.option("--fix", is_flag=True, help="Repair what is found; same as the word fix.")
@click.option("--delete-unknown", is_flag=True, help="With fix, delete unknown cells; same as the word delete_unknown.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@with_config
def fsck_uids(loaded: Loaded, **given: Any) -> None:
    """Check the UID table, and repair it with `fix`. Daemons may keep assigning UIDs.

    The exit status is the number of errors found, 255 at most.
    """
    perform("tsd.cli.uid:fsck_uids", loaded, **given)


@uid.command("report")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@with_config
def report(loaded: Loaded, **given: Any) -> None:
    """Print how many UIDs of each kind are used, how fast they are assigned, and when they run out."""
    perform("tsd.cli.uid:report", loaded, **given)


@uid.command("grep")
@click.argument("words", nargs=-1, required=True, metavar="[KIND] REGEXP")
@click.option("-i", "--ignore-case", is_flag=True, help="Ignore case.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@with_config
def grep(loaded: Loaded, **given: Any) -> None:
    """Print every name that REGEXP matches. Exit status 1 if there is none."""
    perform("tsd.cli.uid:grep", loaded, **given)


@uid.command("assign")
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("names", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@with_config
def assign(loaded: Loaded, **given: Any) -> None:
    """Assign a UID to each of NAMES that has none, and print all UIDs."""
    perform("tsd.cli.uid:assign", loaded, **given)


@click.command()
@click.argument("names", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@with_config
def mkmetric(loaded: Loaded, **given: Any) -> None:
    """Assign UIDs to metrics; same as `tsd uid assign metrics NAMES`."""
    perform("tsd.cli.uid:mkmetric", loaded, **given)


@uid.command("lookup", hidden=True)
@click.argument("words", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@with_config
def lookup(loaded: Loaded, **given: Any) -> None:
    """`tsd uid [KIND] NAME...`: print existing names. Raise NoSuchName with the missing ones."""
    perform("tsd.cli.uid:lookup", loaded, **given)


@uid.command("prune")
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, and delete nothing. Daemons may run.")
@click.option(
    "--older-than",
    default="24h",
    show_default=True,
    help="Keep names that were assigned later than this ago; 0: keep none.",
)
@click.option("--kind", "words", multiple=True, type=click.Choice(KINDS), help="Only this kind. Repeatable.")
@click.option("--all-stopped", is_flag=True, help="Nothing that writes to these shared tables runs now.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with all names.")
@with_config
def prune_uids(loaded: Loaded, **given: Any) -> None:
    """Delete names that nothing uses any more: no point, rollup, annotation or tree, nor metadata that a user wrote.

    Also delete series without rows from the series index and the meta table (tsd.retention.series). UIDs are not
    assigned again. Stop all daemons and OpenTSDBs on these tables first: they write points with the UIDs of names that
    they have cached. Without --kind: the kinds of names that daemons create by themselves. An interrupted run may be
    repeated.
    """
    perform("tsd.cli.prune:prune_uids", loaded, **given)
