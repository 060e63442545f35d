"""`tsd rejected`: refused lines that were kept are listed, counted, exported, and sent again."""

import re
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import click
import msgspec
import trio

from tsd.assembly import control_path, now_ms
from tsd.cli.options import with_config
from tsd.config import Config, Loaded, state_folder
from tsd.deadletters.folder import Entry, read_entries, read_records
from tsd.deadletters.records import LeftOut
from tsd.deadletters.selection import Selection, groups
from tsd.errors import StoreDown, TsdError
from tsd.query.dates import BadDate, parse_date
from tsd.store.remote import Caller

AT_ONCE = 500  # lines, of one request to the daemon
SHOWN_AGAIN = 10  # lines that were refused again
STATES = {"refused": False, "taken": True, "all": None}


@click.command()
@click.option("--reason", default="", help="Refused for this reason: e.g. unknown_metrics, illegal_arguments.")
@click.option("--source", default="", help="From this address, address:port or account; * and ? stand for others.")
@click.option("--metric", default="", help="Of this metric; likewise.")
@click.option("--since", default="0", help="Refused from then on: e.g. 2h-ago, 1700000000, 2023/11/14-22:00.")
@click.option("--until", default="", help="Refused before then.")
@click.option("--match", default="", metavar="REGEX", help="Found in the line, or in why it was refused.")
@click.option(
    "--state", type=click.Choice(list(STATES)), default="refused", show_default=True, help="Taken: since, by --replay."
)
@click.option("--last", type=click.IntRange(1), help="The newest so many of them.")
@click.option("--summary", is_flag=True, help="How many there are, by reason, source and metric.")
@click.option("--export", "export_lines", is_flag=True, help="The lines alone, as they came: tsd import takes them.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@click.option("--replay", is_flag=True, help="Send them again, through the daemon that runs.")
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
    """Lines that were refused, oldest first: when, from whom, why, and the line.

    --replay sends them again once the cause is mended (a metric made, a cap raised). What is taken is marked so and not
    listed again, what is refused again stays, with its new reason; exit status 1 then. It may be repeated: a point has
    one place, but mind that an old line replaces a newer value of the same time.
    """
    if summary + export_lines + as_json + replay > 1 + (summary and as_json):
        raise click.UsageError("one of --summary, --export, --json and --replay")
    wanted = Selection(
        reason, source, metric, _time(since), _time(until) if until else None, _pattern(match), STATES[state]
    )
    if replay:
        wanted = wanted._replace(taken=False)
    trio.run(_settle, loaded.config)
    entries = _selected(loaded.config, wanted, last)
    if summary:
        _summarise(loaded.config, entries, as_json=as_json)
    elif replay:
        sys.exit(trio.run(_replay, loaded.config, entries))
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


def _selected(config: Config, wanted: Selection, last: int | None) -> Iterator[Entry]:
    folder = state_folder(config)
    found = (one for one in read_entries(folder / "rejected", folder / "refused") if wanted.has(one))
    return found if last is None else iter(list(found)[-last:])


async def _settle(config: Config) -> None:
    """Have a daemon that runs write what it holds."""
    try:
        caller = await Caller.connect(control_path(config))
    except OSError:
        return
    try:
        await caller.ask("rejected_flush")
    finally:
        await caller.aclose()


def _show(entry: Entry, *, export_lines: bool, as_json: bool) -> None:
    refused = entry.refused
    if export_lines:
        # The beginning of a line may look like another whole one.
        click.echo(b"# cut: " + refused.bytes if refused.cut else refused.bytes)
    elif as_json:
        click.echo(msgspec.json.encode(told(entry)))
    else:
        who = f"{refused.peer} {refused.account}".rstrip()
        state = " (taken since)" if entry.taken else ""
        click.echo(f"{_date(refused.time)} {who} {entry.reason}{state}: {_visible(entry.message)}")
        more = f" … {refused.cut} bytes more" if refused.cut > 0 else " … and more" if refused.cut else ""
        click.echo(f"    {_visible(refused.shown)}{more}")


def told(entry: Entry) -> dict[str, Any]:
    """A refused line for JSON."""
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
        "taken": entry.taken,
        "sent_again": entry.replayed.time if entry.replayed else None,
    }


def _visible(text: str) -> str:
    """Text that a terminal can only show: a line is a stranger's, and could hold its commands."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def _date(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"


def _summarise(config: Config, entries: Iterator[Entry], *, as_json: bool) -> None:
    found = list(groups(entries))
    left_out: Counter[str] = Counter()
    for _, record in read_records(state_folder(config) / "rejected"):
        if isinstance(record, LeftOut):
            left_out.update(record.lines)
    if as_json:
        told = [group._asdict() for group in found]
        click.echo(msgspec.json.encode({"groups": told, "left_out": dict(left_out)}))
        return
    for group in found:
        click.echo(
            f"{group.lines:>8} {group.reason} {group.source} {_visible(group.metric) or '(no metric)'}: last "
            f"{_date(group.last_ms)}: {_visible(group.message)}"
        )
    click.echo(f"{sum(group.lines for group in found):>8} lines")
    for reason, lines in left_out.most_common():
        click.echo(f"{lines:>8} {reason}: not kept, because too many came at once (tsd.rejected.per_second)")


async def _replay(config: Config, entries: Iterator[Entry]) -> int:
    """Send lines again; the exit status."""
    try:
        caller = await Caller.connect(control_path(config))
    except OSError as exc:
        raise StoreDown(f"no daemon runs on {state_folder(config)}: lines are sent again through one") from exc
    taken, again = 0, Counter[str]()
    try:
        while some := list(islice(entries, AT_ONCE)):
            items = [(entry.name, b"" if entry.refused.cut else entry.refused.bytes) for entry in some]
            outcomes = await caller.ask("rejected_replay", items=items)
            for entry, (was_taken, reason, message) in zip(some, outcomes, strict=True):
                taken += was_taken
                if not was_taken:
                    again[reason] += 1
                    if again.total() <= SHOWN_AGAIN:
                        click.echo(f"refused again: {_visible(message)}\n    {_visible(entry.refused.shown)}", err=True)
    except TsdError as exc:
        raise type(exc)(f"{exc}. {taken} lines were taken before") from exc
    finally:
        await caller.aclose()
    click.echo(f"{taken} lines taken, {again.total()} refused again")
    for reason, lines in again.most_common():
        click.echo(f"{lines:>8} {reason}")
    return 1 if again else 0
