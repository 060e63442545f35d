"""Failed tries, by address: counted, told to the log now and then, and slowed down more and more.

Only those who fail are slowed: a token that is right, or a password that was right before, is never held up by others
at the same address.
"""

from collections import OrderedDict

import structlog
import trio

from tsd.access.networks import household
from tsd.errors import TsdError

log = structlog.get_logger(__name__)

REMEMBERED = 4096  # addresses
FIRST_S, LONGEST_S = 0.1, 5.0  # that an answer to a failed try is held back: twice as long each time
FORGIVEN_S = 60.0  # in which one failed try is forgotten
MOST_AHEAD_S = 10.0  # one who has as much to wait is not heard at all
TOLD_EVERY_S = 60.0
MOST_TOLD = 20  # addresses, in that time: a crowd must not fill the log


class TooManyTries(TsdError):
    """An address that fails so often that it is not heard."""


class _Record:
    """What an address has done."""

    __slots__ = ("at", "failures", "next_at", "told_at", "untold")

    def __init__(self) -> None:
        self.failures = 0.0
        self.at = 0.0
        self.next_at = -float("inf")  # when the next password of this address may be looked at
        self.told_at = -float("inf")
        self.untold = 0


class Guesses:
    """The failed tries of all addresses."""

    def __init__(self, prefix: int) -> None:
        """`prefix`: bits of an address of IPv6 that are one client's."""
        self._prefix = prefix
        self._by_household: OrderedDict[str, _Record] = OrderedDict()
        self._told = 0
        self._told_since = -float("inf")

    @property
    def remembered(self) -> int:
        """How many addresses."""
        return len(self._by_household)

    async def wait_turn(self, address: str) -> None:
        """Wait until a password of this address may be looked at. Raises TooManyTries."""
        record = self._by_household.get(household(address, self._prefix))
        if record is None:
            return
        now = trio.current_time()
        begin = max(now, record.next_at)
        if begin - now > MOST_AHEAD_S:
            raise TooManyTries("too many failed tries from this address: wait a while")
        record.next_at = begin + _pause_s(self._settled(record, now))
        await trio.sleep_until(begin)

    async def failed(self, address: str, door: str, name: str) -> None:
        """Note a failed try, and hold its answer back. Each try has its own wait: they do not add up to a queue."""
        key = household(address, self._prefix)
        record = self._by_household.pop(key, None) or _Record()
        self._by_household[key] = record
        if len(self._by_household) > REMEMBERED:
            self._by_household.popitem(last=False)
        now = trio.current_time()
        pause_s = _pause_s(self._settled(record, now))
        record.failures += 1
        self._tell(record, now, address=address, door=door, name=name)
        await trio.sleep(pause_s)

    def _settled(self, record: _Record, now: float) -> float:
        """How many failed tries count now."""
        record.failures = max(0.0, record.failures - (now - record.at) / FORGIVEN_S)
        record.at = now
        return record.failures

    def _tell(self, record: _Record, now: float, **who: str) -> None:
        if now - self._told_since >= TOLD_EVERY_S:
            self._told_since, self._told = now, 0
        if now - record.told_at < TOLD_EVERY_S or self._told >= MOST_TOLD:
            record.untold += 1
            return
        self._told += 1
        log.warning("somebody could not show who it is", **who, untold=record.untold)
        record.told_at, record.untold = now, 0


def _pause_s(failures: float) -> float:
    """How long after so many failed tries the next one takes.

    >>> [_pause_s(failures) for failures in (0, 1, 3, 1000)]
    [0.1, 0.2, 0.8, 5.0]
    """
    return float(min(LONGEST_S, FIRST_S * 2 ** min(failures, 16)))
