"""What each client has done, and what it may still do: by address, or by account for those who have shown theirs."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from ipaddress import ip_network
from typing import Any, NamedTuple

import trio

from tsd.access.networks import household
from tsd.codec.uid import Kind
from tsd.errors import BadLine
from tsd.ingest.bucket import Bucket
from tsd.ingest.growth import MINUTE_S, too_many_names
from tsd.ingest.source import Refusal
from tsd.limit_settings import LimitSettings, Network, exemptions

REMEMBERED = 4096  # clients without a connection that have an account of their own
AT_ONCE = 256  # more of them, before the oldest leave: to find them all are gone through
BURST_S = 10  # so many seconds' worth of lines may come at once: agents send in bursts
SHOWN_BYTES = 300  # of an example
OTHERS = "others"


QUOTAS = (
    "tsd.network.connections_per_address", "tsd.quota.lines_per_second", "tsd.quota.new_names_per_minute",
    "tsd.quota.exempt",
)  # fmt: skip


class Quotas(NamedTuple):
    """What one client may do; 0: anything."""

    lines_per_s: int = 0
    names_per_minute: int = 0
    connections: int = 0
    exempt: tuple[Network, ...] = ()
    exempt_accounts: frozenset[str] = frozenset()

    def spares(self, name: str) -> bool:
        """Whether a client has no quotas: its address, or @ and its account."""
        if name.startswith("@"):
            return name[1:] in self.exempt_accounts
        try:
            found = ip_network(name)
        except ValueError:
            return not name  # of no network: this process
        return any(_lies_in(found, network) for network in self.exempt)


def _lies_in(one: Network, other: Network) -> bool:
    return type(one) is type(other) and one.subnet_of(other)  # type: ignore[arg-type] # of one version, then


NO_QUOTAS = Quotas()


def quotas_of(settings: LimitSettings) -> Quotas:
    """The quotas that are configured."""
    return Quotas(
        settings.quota_lines, settings.quota_names, settings.address_connections, *exemptions(settings.quota_exempt)
    )


class Example(NamedTuple):
    """The refused line that came last."""

    line: bytes  # its beginning
    reason: str
    message: str
    time_ms: int

    def told(self) -> dict[str, Any]:
        """For JSON."""
        line = self.line.decode("latin-1")
        return {"line": line, "reason": self.reason, "message": self.message, "time": self.time_ms}


class Client:
    """The account of one client: of all its connections."""

    __slots__ = (
        "_lines_bucket", "_names_bucket", "_quotas", "accepted", "bytes", "connections", "connections_refused",
        "connections_total", "example", "first_ms", "last_ms", "lines", "name", "name_example", "new_names",
        "new_series", "now_ms", "paused_s", "pausing", "refused", "turn",
    )  # fmt: skip

    def __init__(self, name: str, quotas: Quotas = NO_QUOTAS, now_ms: Callable[[], int] = lambda: 0) -> None:
        """`name` is an address, a network of IPv6 that is one client's, or @ and an account."""
        self.name = name
        self.now_ms = now_ms
        self.first_ms = self.last_ms = now_ms()
        self.connections = 0  # open ones
        self.connections_total = 0
        self.connections_refused = 0  # one too many
        self.lines = 0  # of all kinds, commands included
        self.bytes = 0
        self.accepted = 0  # data points
        self.refused: Counter[str] = Counter()  # lines by reason
        self.example: Example | None = None
        self.new_names = 0  # that got a UID
        self.name_example = ""
        self.new_series = 0
        self.paused_s = 0.0  # of all connections together
        self.pausing = 0  # connections that are not read from now
        self.turn = trio.Lock()  # to take in a large block
        self._quotas = NO_QUOTAS
        self._lines_bucket: Bucket | None = None
        self._names_bucket: Bucket | None = None
        self.limit(quotas)

    def limit(self, quotas: Quotas) -> None:
        """Have these quotas from now on."""
        self._quotas = NO_QUOTAS if quotas is NO_QUOTAS or quotas.spares(self.name) else quotas
        self._lines_bucket = self._names_bucket = None
        if rate := self._quotas.lines_per_s:
            self._lines_bucket = Bucket(rate, rate * BURST_S, now_s=trio.current_time())
        if per_minute := self._quotas.names_per_minute:
            self._names_bucket = Bucket(per_minute / MINUTE_S, per_minute, now_s=trio.current_time())

    @property
    def may_connect(self) -> bool:
        """Whether it may have one connection more."""
        return not self._quotas.connections or self.connections < self._quotas.connections

    @property
    def may_be_forgotten(self) -> bool:
        """Whether nobody is connected, and no quota has to catch up: to begin anew would give it more than its own."""
        now_s = trio.current_time()
        buckets = (self._lines_bucket, self._names_bucket)
        return not (self.connections or self.pausing or any(one and not one.is_full(now_s=now_s) for one in buckets))

    def sent(self, lines: int) -> None:
        """So many lines of any kind came."""
        self.lines += lines
        if self._lines_bucket is not None:
            self._lines_bucket.spend(lines, now_s=trio.current_time())

    def took(self, accepted: int, refusals: Sequence[Refusal]) -> None:
        """What became of lines with data points."""
        self.sent(accepted + len(refusals))
        self.accepted += accepted
        self.last_ms = self.now_ms()
        if refusals:
            self.refused.update([refusal.error.reason for refusal in refusals])
            line, error = refusals[-1]
            self.example = Example(line[:SHOWN_BYTES], error.reason, str(error)[:SHOWN_BYTES], self.last_ms)

    @property
    def debt_s(self) -> float:
        """How long until its quota has caught up with the lines it sent."""
        return 0.0 if self._lines_bucket is None else self._lines_bucket.debt_s(now_s=trio.current_time())

    async def rest(self, leaving: trio.Event) -> None:
        """Wait until its quota has caught up, or the daemon is `leaving`: what was sent by then is taken at once."""
        while (debt_s := self.debt_s) and not leaving.is_set():
            began_s = trio.current_time()
            self.pausing += 1
            try:
                with trio.move_on_after(debt_s):
                    await leaving.wait()
            finally:
                self.pausing -= 1
                self.paused_s += trio.current_time() - began_s

    def why_no_name(self, kind: Kind, name: bytes) -> BadLine | None:
        """Why it may bring no new name now."""
        if self._names_bucket is None or self._names_bucket.has(now_s=trio.current_time()):
            return None
        return too_many_names(kind, name, self._quotas.names_per_minute, "tsd.quota.new_names_per_minute")

    def named(self, kind: Kind, name: bytes) -> None:
        """A name that it brought gets a UID."""
        self.new_names += 1
        self.name_example = f"{kind.value} {name[:SHOWN_BYTES].decode('latin-1')}"
        if self._names_bucket is not None:
            self._names_bucket.take(now_s=trio.current_time())

    def told(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "client": self.name,
            "connections": self.connections,
            "connections_total": self.connections_total,
            "connections_refused": self.connections_refused,
            "lines": self.lines,
            "bytes": self.bytes,
            "accepted": self.accepted,
            "refused": self.refused.total(),
            "refused_by_reason": dict(self.refused),
            "refused_example": self.example and self.example.told(),
            "new_names": self.new_names,
            "new_name_example": self.name_example,
            "new_series": self.new_series,
            "paused_ms": round(self.paused_s * 1000),
            "pausing": self.pausing,
            "first_seen": self.first_ms,
            "last_seen": self.last_ms,
        }


class Statistics(NamedTuple):
    """The clients' numbers at a moment."""

    known: int
    pausing: int  # connections that are not read from, because of a quota
    paused_ms: int  # of all connections that were, together


class Clients:
    """All accounts. Of clients that have no connection, those who were seen longest ago are summed up as others."""

    def __init__(self, quotas: Quotas = NO_QUOTAS, now_ms: Callable[[], int] = lambda: 0, *, prefix: int = 128) -> None:
        """`prefix`: bits of an address of IPv6 that are one client's."""
        self._quotas = quotas
        self._prefix = prefix
        self._now_ms = now_ms
        self._by_name: OrderedDict[str, Client] = OrderedDict()
        self._look_at = REMEMBERED + AT_ONCE  # so many, and some may be forgotten
        self._others = Client("", now_ms=now_ms)
        self._others.name = OTHERS
        self.forgotten = 0  # that are in others
        self.leaving = trio.Event()

    def at(self, address: str) -> Client:
        """The account of who is at an address. One that is exempt by itself has one of its own."""
        return self.of(address if self._quotas.spares(address) else household(address, self._prefix))

    def of(self, name: str) -> Client:
        """The account of an address or a network, or of @ and an account's name; a new one where there is none."""
        client = self._by_name.get(name)
        if client is None:
            client = self._by_name[name] = Client(name, self._quotas, self._now_ms)
            if len(self._by_name) > self._look_at:
                self._forget_some()
        else:
            self._by_name.move_to_end(name)
        return client

    def _forget_some(self) -> None:
        """Sum up those clients that were seen longest ago, of those that have nothing to be remembered for."""
        *idle, _ = (
            client for client in self._by_name.values() if client.may_be_forgotten
        )  # the last one has just come
        for client in idle[: max(0, len(idle) + 1 - REMEMBERED)]:
            self._sum_up(client)
        self._look_at = len(self._by_name) + max(0, REMEMBERED - len(idle) - 1) + AT_ONCE

    def _sum_up(self, oldest: Client) -> None:
        del self._by_name[oldest.name]
        self.forgotten += 1
        self._others.refused.update(oldest.refused)
        for count in ("connections_total", "connections_refused", "lines", "bytes", "accepted", "new_names",
                      "new_series", "paused_s"):  # fmt: skip
            setattr(self._others, count, getattr(self._others, count) + getattr(oldest, count))
        if oldest.example is not None:
            self._others.example = oldest.example

    def limit(self, quotas: Quotas) -> None:
        """Have these quotas from now on."""
        self._quotas = quotas
        for client in self._by_name.values():
            client.limit(quotas)

    def leave(self) -> None:
        """Nobody is paused any more: the daemon ends, and takes what has come."""
        self.leaving.set()

    def statistics(self) -> Statistics:
        """The numbers of this moment."""
        paused_s = sum(client.paused_s for client in self)
        return Statistics(len(self), sum(client.pausing for client in self), round(paused_s * 1000))

    def __iter__(self) -> Iterator[Client]:
        yield from self._by_name.values()
        if self.forgotten:
            yield self._others

    def __len__(self) -> int:
        return len(self._by_name)
