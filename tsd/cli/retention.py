"""`tsd retention`: show what the rules of tsd.retention would delete, and delete it now."""

import json
from collections.abc import Collection, Mapping
from typing import Any

import click
import trio

from tsd.cli.context import Access, access, flush_pending
from tsd.cli.options import closed_output_ignored
from tsd.cli.output import show_size
from tsd.codec.text import counted
from tsd.config.loader import Loaded
from tsd.config.settings import Config
from tsd.daemon.layouts import clock_guard, expiring_tables
from tsd.daemon.settings import now_ms
from tsd.daemon.wiring import configured_rollups
from tsd.errors import TsdError
from tsd.tables.opentsdb.layout import make_retention, retention_policy
from tsd.tables.opentsdb.retention import Retention
from tsd.tables.retention_task import Amount, RetentionTask


def retention(loaded: Loaded, dry_run: bool, exact: bool, trust_clock: bool, as_json: bool) -> None:
    """Run `tsd retention`."""
    config = loaded.config
    if not retention_policy(config).expires:
        raise TsdError("no rule of tsd.retention lets points expire; set, for example, tsd.retention.rules to *=400d")
    if dry_run:
        found, sampled = trio.run(_estimate, config, exact)
        _print(found, "would delete ", as_json=as_json, about={"exact": not sampled}, sampled=sampled)
        return
    result = trio.run(_delete, config, trust_clock)
    deleted = {rule: Amount(**counts) for rule, counts in result["rules"].items()}
    with closed_output_ignored():
        _print(deleted, "deleted ", as_json=as_json, about={"waiting_for": result["waiting_for"]})
    if result["waiting_for"]:
        raise TsdError(
            f"nothing deleted: {result['waiting_for']}. If the clock is right, run tsd retention --trust-clock"
        )


async def _estimate(config: Config, exact: bool) -> tuple[dict[str, Amount], set[str]]:
    """Return what each rule would delete, and the rules of which a sample was counted."""
    found: dict[str, Amount] = {}
    sampled: set[str] = set()
    async with access(config, must_exist=True, any_layout=True) as opened:
        await flush_pending(opened, delete=False)
        kept = _opentsdb_retention(config, opened)
        now_s = now_ms() // 1000
        if kept is not None:
            async for expired in kept.expired(now_s):
                estimate = await kept.estimate(expired, exact=exact)
                found[expired.rule] = found.get(expired.rule, Amount()).plus(estimate.amount)
                if estimate.is_sample:
                    sampled.add(expired.rule)
        for tables in expiring_tables(config, opened.store, now_ms):
            async for rule, amount in tables.count(now_s):
                found[rule] = found.get(rule, Amount()).plus(amount)
    return found, sampled


async def _delete(config: Config, trust_clock: bool) -> Mapping[str, Any]:
    """Delete what has expired, through the daemon if one runs."""
    async with access(config, must_exist=True, any_layout=True) as opened:
        if opened.daemon is not None:
            answer: Mapping[str, Any] = await opened.daemon.call("retention", trust_clock=trust_clock)
            return answer
        kept = _opentsdb_retention(config, opened)
        further = expiring_tables(config, opened.store, now_ms)
        task = RetentionTask(kept, clock_guard(config), now_ms, lambda: False, further)
        result = await task.round(trust_clock)
        if kept is not None:
            await kept.reclaim()
        return result


def _opentsdb_retention(config: Config, opened: Access) -> Retention | None:
    """Return the retention of OpenTSDB's tables, None with another layout."""
    if not config.has_opentsdb_tables:
        return None
    return make_retention(config, opened.store, opened.uids, configured_rollups(config))


def _print(
    amounts: Mapping[str, Amount],
    verb: str,
    *,
    as_json: bool,
    about: Mapping[str, object],
    sampled: Collection[str] = (),
) -> None:
    if as_json:
        click.echo(json.dumps({**about, "rules": {rule: amount._asdict() for rule, amount in amounts.items()}}))
        return
    for rule, amount in amounts.items():
        what = f"{counted(amount.rows, 'row')}, {counted(amount.points, 'point')}, {show_size(amount.bytes)}"
        click.echo(f"{rule}: {verb}about {what} (from a sample)" if rule in sampled else f"{rule}: {verb}{what}")
    if not amounts and not about.get("waiting_for"):
        click.echo("nothing has expired")
