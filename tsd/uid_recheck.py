"""Holds the names that a daemon keeps in memory against the UID table, so that renames and deletions reach it; and
looks how many UIDs are left."""

from collections.abc import Callable

import structlog
import trio

from tsd.errors import CorruptRow, StoreError
from tsd.uids import Uids

log = structlog.get_logger(__name__)

COUNTERS_S = 600  # between looks at how many UIDs other daemons have used


async def watch_counters(uids: Uids) -> None:
    """Notice UIDs running out, whoever uses them, for ever."""
    while True:
        try:
            await uids.read_counters()
        except StoreError as error:
            log.debug("UID counters not read", error=str(error))
        except CorruptRow as error:  # the names that there are need no counter
            log.error(
                "a UID counter is damaged: new names of its kind cannot be stored",
                error=str(error),
                what_to_do="give it 8 bytes, big-endian, no less than the highest UID in use (tsd uid grep KIND .)",
            )
        await trio.sleep(COUNTERS_S)


async def recheck_forever(uids: Uids, period_s: float, on_change: Callable[[], None]) -> None:
    """Look all kept names up again once a period, spread over it; `on_change` is to drop the caches."""
    while True:
        await recheck(uids, period_s, on_change)


async def recheck(uids: Uids, period_s: float, on_change: Callable[[], None]) -> None:
    """One round, which takes a period. What the store does not answer waits for the next one."""
    overflows = uids.overflows
    count = uids.parts
    pause_s = period_s / (count + 1)
    parts = uids.remembered()
    for _ in range(count):
        await trio.sleep(pause_s)
        part = next(parts, None)
        if part is None:  # they were dropped
            continue
        try:
            changed = await uids.changed(part)
        except StoreError as error:
            log.debug("names not looked up again", error=str(error))
            continue
        if changed:
            names = " ".join(row.decode("latin-1") if part.column.startswith(b"id:") else row.hex() for row in changed)
            log.info("names or UIDs were changed by others", count=len(changed), names=names[:200])
            on_change()
            return
    await trio.sleep(pause_s)
    if uids.overflows != overflows:  # what was forgotten may still be in use by series, and was not looked at
        on_change()
