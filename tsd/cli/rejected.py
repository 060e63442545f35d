"""`tsd rejected`: list, count, export and replay the refused lines in the log."""

import fcntl
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import click
import msgspec

from tsd.cli.control import DaemonConnection, connect, try_connect
from tsd.cli.options import closed_output_ignored
from tsd.cli.settings import with_config
from tsd.codec.dates import BadDate, parse_date
from tsd.codec.text import counted, visible
from tsd.config.loader import Loaded, state_folder
from tsd.config.settings import Config
from tsd.config.state_dir import IDENTITY, STATE, folder_errors
from tsd.daemon.settings import now_ms
from tsd.errors import REASONS, DaemonRuns, TsdError
from tsd.ingest.rejected.files import DroppedLines, Entry, RejectedFilter, groups, read_entries, read_records

REJECTED, REFUSED, FORMAT_FILE = "rejected", "refused", "format"  # of a state folder
REQUEST_LINES = 500  # lines per request to the daemon
SHOWN_AGAIN = 10  # lines printed that were refused again
STATES = {"refused": False, "taken": True, "all": None}


@click.command()
@click.option("--reason", default="", help="Only lines with this reason, e.g. unknown_metrics, illegal_arguments.")
@click.option(
    "--source", default="", help="Only lines from this address, address:port or account, with wildcards * and ?."
)
@click.option("--metric", default="", help="Only lines of this metric, with wildcards * and ?.")
@click.option(
    "--since", default="0", help="Only lines refused since this time, e.g. 2h-ago, 1700000000, 2023/11/14-22:00."
)
@click.option("--until", default="", help="Only lines refused before this time.")
@click.option("--match", default="", metavar="REGEX", help="Only lines where REGEX matches in the line or its error.")
@click.option(
    "--state",
    type=click.Choice(list(STATES)),
    default="refused",
    show_default=True,
    help="taken: accepted since, by --replay.",
)
@click.option("--last", type=click.IntRange(1), help="Only the newest N lines.")
@click.option("--summary", is_flag=True, help="Print counts by reason, source and metric.")
@click.option("--export", "export_lines", is_flag=True, help="Print the lines as received, for `tsd import`.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@click.option("--replay", is_flag=True, help="Send the lines again, through the running daemon.")
@with_config
def rejected(
    loaded: Loaded,
    reason: str,
    source: str,
    metric: str,
    since: str,
    until: str,
    match: str,
    state: str,
    last: int | None,
    summary: bool,
    export_lines: bool,
    as_json: bool,
    replay: bool,
) -> None:
    """Print refused lines, oldest first: time, source, reason and line.

    --replay sends them again after the cause is repaired (a metric created, a limit raised). Accepted lines are marked
    and no longer listed. Lines that are refused again stay, with the new reason, and the exit status is 1. It can be
    repeated: a replayed line writes the same point. But an old line replaces a newer value of the same time.
    """
    if summary + export_lines + replay > 1 or (export_lines and as_json):
        raise click.UsageError("one of --summary, --export and --replay; --json with --summary or --replay only")
    if reason and reason not in REASONS:
        raise click.UsageError(f"--reason: got {reason}, wanted one of {', '.join(REASONS)}")
    wanted = RejectedFilter(
        reason, source, metric, _time(since), _time(until) if until else None, _pattern(match), STATES[state]
    )
    if replay:
        sys.exit(_replay(loaded.config, wanted._replace(taken=False), last, as_json=as_json))
    _check_folder(state_folder(loaded.config))
    _flush_daemon(loaded.config)
    entries = _selected(loaded.config, wanted, last)
    if summary:
        _summarise(loaded.config, entries, as_json=as_json)
    else:
        for entry in entries:
            _show(entry, export_lines=export_lines, as_json=as_json)


def _time(text: str) -> int:
    try:
        return parse_date(text, now_ms())
    except BadDate as exc:
        raise click.UsageError(str(exc)) from exc


def _pattern(text: str) -> re.Pattern[str] | None:
    try:
        return re.compile(text) if text else None
    except re.error as exc:
        raise click.UsageError(f"--match {text}: {exc}") from exc


def _check_folder(state: Path) -> None:
    """Raise TsdError if a folder is no state folder, or its refused lines cannot be read. There would seem to be none
    of them."""
    with folder_errors(state, STATE):
        found = set(os.listdir(state))
        for name in found & {REJECTED, REFUSED}:
            os.listdir(state / name)
    if not found & {FORMAT_FILE, REJECTED, REFUSED}:
        raise TsdError(f"{state} is no state folder, which has a file {FORMAT_FILE}: set another with {STATE.option}")


def _selected(config: Config, wanted: RejectedFilter, last: int | None) -> Iterator[Entry]:
    folder = state_folder(config)
    found = (one for one in read_entries(folder / REJECTED, folder / REFUSED) if wanted.has(one))
    return found if last is None else iter(list(found)[-last:])


def _flush_daemon(config: Config) -> None:
    """Have a running daemon write its buffered records to the log."""
    daemon = try_connect(config)
    if daemon is not None:
        with daemon:
            daemon.call("rejected_flush")


def _show(entry: Entry, *, export_lines: bool, as_json: bool) -> None:
    refused = entry.refused
    if export_lines:
        # A truncated line may look like a complete one, one of another charset or dialect like another series.
        mark = b"# cut: " if refused.cut else b"# as sent: " if refused.as_sent else b""
        click.echo(mark + refused.bytes)
    elif as_json:
        click.echo(msgspec.json.encode(as_members(entry)))
    else:
        source = f"{refused.peer} {refused.account}".rstrip()
        state = " (accepted since)" if entry.taken else ""
        click.echo(f"{_date(refused.time)} {source} {entry.reason}{state}: {visible(entry.message)}")
        more = f" … {counted(refused.cut, 'byte')} more" if refused.cut > 0 else " … and more" if refused.cut else ""
        click.echo(f"    {visible(refused.shown)}{more}")


def as_members(entry: Entry) -> dict[str, Any]:
    """Return a refused line as JSON members."""
    refused = entry.refused
    return {
        "name": entry.name,
        "time": refused.time,
        "peer": refused.peer,
        "account": refused.account,
        "reason": entry.reason,
        "message": entry.message,
        "line": refused.shown,
        "cut": refused.cut,
        "as_sent": refused.as_sent,
        "taken": entry.taken,
        "sent_again": entry.replayed.time if entry.replayed else None,
    }


def _date(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"


def _summarise(config: Config, entries: Iterator[Entry], *, as_json: bool) -> None:
    found = list(groups(entries))
    dropped: Counter[str] = Counter()
    for _, record in read_records(state_folder(config) / REJECTED):
        if isinstance(record, DroppedLines):
            dropped.update(record.lines)
    if as_json:
        members = [group._asdict() for group in found]
        click.echo(msgspec.json.encode({"groups": members, "dropped": dict(dropped)}))
        return
    for group in found:
        click.echo(
            f"{group.lines:>8} {group.reason} {group.source} {visible(group.metric) or '(no metric)'}: last "
            f"{_date(group.last_ms)}: {visible(group.message)}"
        )
    lines = sum(group.lines for group in found)
    click.echo(f"{lines:>8} {'line' if lines == 1 else 'lines'}")
    for reason, count in dropped.most_common():
        click.echo(f"{count:>8} {reason}: not kept: too many, or the disk failed")


def _replay(config: Config, wanted: RejectedFilter, last: int | None, *, as_json: bool) -> int:
    """Send lines again and return the exit status."""
    folder = state_folder(config)
    taken, again = 0, Counter[str]()
    with connect(config) as daemon, _lock_replay(folder):
        daemon.call("rejected_replay", items=[])  # waits until lines of a command that was killed are marked
        daemon.call("rejected_flush")
        entries = _selected(config, wanted, last)
        try:
            while some := list(islice(entries, REQUEST_LINES)):
                taken += _replay_some(daemon, some, again)
        except TsdError as exc:
            raise type(exc)(f"{exc}. Accepted before: {counted(taken, 'line')}") from exc
    with closed_output_ignored():
        if as_json:
            click.echo(msgspec.json.encode({"accepted": taken, "refused_again": dict(again)}))
        else:
            click.echo(f"{counted(taken, 'line')} accepted, {again.total()} refused again")
            for reason, lines in again.most_common():
                click.echo(f"{lines:>8} {reason}")
    return 1 if again else 0


@contextmanager
def _lock_replay(folder: Path) -> Iterator[None]:
    """Let no other process replay lines of a state folder in the block: it would send those again that are sent, but
    not marked yet. Raise DaemonRuns if one does.

    The lock is on a file that a daemon has made, because this user may be unable to write to the folder.
    """
    with folder_errors(folder, STATE):
        lock = os.open(folder / IDENTITY, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise DaemonRuns(f"state folder {folder}: another process replays lines: wait for its end") from exc
        yield
    finally:
        os.close(lock)


def _replay_some(daemon: DaemonConnection, entries: Sequence[Entry], again: Counter[str]) -> int:
    """Send lines again. Count those refused again by reason, and print the first ones. Return how many are accepted."""
    taken = 0
    items = [(one.name, b"" if one.refused.cut else one.refused.bytes, one.refused.as_sent) for one in entries]
    outcomes = daemon.call("rejected_replay", items=items)
    for entry, (was_taken, reason, message) in zip(entries, outcomes, strict=True):
        taken += was_taken
        if not was_taken:
            again[reason] += 1
            if again.total() <= SHOWN_AGAIN:
                click.echo(f"refused again: {visible(message)}\n    {visible(entry.refused.shown)}", err=True)
    return taken
