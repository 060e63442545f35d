"""What each client has done, and what it may still do. A client is an address, and each account at each address that
has shown it: hosts that share a token are told apart, and so are accounts that share an address."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import trio

from tsd.access.networks import household
from tsd.codec.uid import Kind
from tsd.doors.quotas import NO_QUOTAS, Allowance, Quotas, Rates
from tsd.errors import BadLine
from tsd.ingest.source import Refusal

REMEMBERED = 4096  # clients without a connection
AT_ONCE = 256  # more of them, before the oldest leave: to find them all are gone through
SHOWN_BYTES = 300  # of an example
OTHERS = "others"


class Example(NamedTuple):
    """The refused line that came last."""

    line: bytes  # its beginning
    reason: str
    message: str
    time_ms: int
    peer: str  # address and port it came from

    def told(self) -> dict[str, Any]:
        """For JSON."""
        line = self.line.decode("latin-1")
        shown = {"line": line, "reason": self.reason, "message": self.message, "time": self.time_ms}
        return {**shown, "peer": self.peer}


def name_of(address: str, account: str) -> str:
    """A client's name.

    >>> name_of("10.0.0.1", "web-agents"), name_of("10.0.0.1", "")
    ('web-agents@10.0.0.1', '10.0.0.1')
    """
    return f"{account}@{address}" if account else address


class Client:
    """What one client has done: on all its connections."""

    __slots__ = (
        "_allowances", "_limited_anew", "_most_connections", "_own", "_paused_s", "_pausing_since_s", "_shared",
        "accepted", "account", "address", "bytes", "connections", "connections_refused", "connections_total", "example",
        "first_ms", "is_bounded", "last_ms", "lines", "name", "name_example", "new_names", "new_series", "now_ms",
        "pausing", "refused", "turn",
    )  # fmt: skip

    def __init__(
        self,
        address: str,
        quotas: Quotas = NO_QUOTAS,
        now_ms: Callable[[], int] = lambda: 0,
        *,
        account: str = "",
        shared: Allowance | None = None,
    ) -> None:
        """`address` may be a network of IPv6 that is one client's; `shared` is what the account has at all its
        addresses together."""
        self.name = name_of(address, account)
        self.address = address
        self.account = account
        self.now_ms = now_ms
        self.first_ms = self.last_ms = now_ms()
        self.connections = 0  # open ones: of an address all, of an account those that have shown it
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
        self.pausing = 0  # connections that are not read from now
        self.turn = trio.Lock()  # to take in a large block
        self._paused_s = 0.0
        self._pausing_since_s = 0.0  # what came after that is not in the former yet
        self._own = Allowance()
        self._shared = shared
        self._allowances: tuple[Allowance, ...] = ()  # those that bound something
        self.is_bounded = False  # by any of them
        self._most_connections = 0
        self._limited_anew: trio.Event | None = None  # while somebody is paused
        self.limit(quotas)

    def limit(self, quotas: Quotas) -> None:
        """Have these quotas from now on; `shared` has its own already. Who is paused by others looks again."""
        mine = NO_QUOTAS if quotas is NO_QUOTAS or quotas.spares(self.address, self.account) else quotas
        self._most_connections = mine.connections
        self._own.limit(Rates(mine.lines_per_s, mine.names_per_minute))
        shared = None if mine is NO_QUOTAS else self._shared
        self._allowances = tuple(one for one in (self._own, shared) if one is not None and one.is_bounded)
        self.is_bounded = bool(self._allowances)
        self.wake()

    def wake(self) -> None:
        """Have those who are paused look whether they still must be."""
        if self._limited_anew is not None:
            self._limited_anew.set()
            self._limited_anew = None

    @property
    def may_connect(self) -> bool:
        """Whether it may have one connection more."""
        return not self._most_connections or self.connections < self._most_connections

    @property
    def may_be_forgotten(self) -> bool:
        """Whether nobody is connected, and no quota has to catch up: to begin anew would give it more than its own."""
        return not (self.connections or self.pausing) and self._own.is_full

    def sent(self, lines: int) -> None:
        """So many lines of any kind came."""
        self.lines += lines
        for allowance in self._allowances:
            allowance.spend(lines)

    def took(self, accepted: int, refusals: Sequence[Refusal], peer: str = "") -> None:
        """What became of lines with data points, which came from `peer`."""
        self.sent(accepted + len(refusals))
        self.accepted += accepted
        self.last_ms = self.now_ms()
        if refusals:
            self.refused.update([refusal.error.reason for refusal in refusals])
            line, error = refusals[-1]
            self.example = Example(line[:SHOWN_BYTES], error.reason, str(error)[:SHOWN_BYTES], self.last_ms, peer)

    @property
    def debt_s(self) -> float:
        """How long until its quotas have caught up with the lines it sent."""
        return max([allowance.debt_s for allowance in self._allowances], default=0.0)

    @property
    def exceeded(self) -> str:
        """The setting that bounds it most."""
        return max(self._allowances, key=lambda one: one.debt_s, default=self._own).lines_key

    async def rest(self, leaving: trio.Event) -> None:
        """Wait until its quotas have caught up, or are others, or the daemon is `leaving`, of which all are woken: what
        was sent by then is taken at once."""
        while (debt_s := self.debt_s) and not leaving.is_set():
            if self._limited_anew is None:
                self._limited_anew = trio.Event()
            self._pause(1)
            try:
                with trio.move_on_after(debt_s):
                    await self._limited_anew.wait()
            finally:
                self._pause(-1)

    def _pause(self, more: int) -> None:
        """So many connections more are not read from."""
        self._paused_s = self.paused_s
        self._pausing_since_s = trio.current_time()
        self.pausing += more

    @property
    def paused_s(self) -> float:
        """How long connections were not read from, up to now; of all together."""
        if not self.pausing:
            return self._paused_s
        return self._paused_s + self.pausing * (trio.current_time() - self._pausing_since_s)

    def why_no_name(self, kind: Kind, name: bytes) -> BadLine | None:
        """Why it may bring no new name now."""
        return next(filter(None, (allowance.why_no_name(kind, name) for allowance in self._allowances)), None)

    def named(self, kind: Kind, name: bytes) -> None:
        """A name that it brought gets a UID."""
        self.new_names += 1
        self.name_example = f"{kind.value} {name[:SHOWN_BYTES].decode('latin-1')}"
        for allowance in self._allowances:
            allowance.named()

    def add(self, other: "Client") -> None:
        """Count as one's own what another client did that has no connection."""
        self.connections_total += other.connections_total
        self.connections_refused += other.connections_refused
        self.lines += other.lines
        self.bytes += other.bytes
        self.accepted += other.accepted
        self.refused.update(other.refused)
        self.new_names += other.new_names
        self.new_series += other.new_series
        self._paused_s += other.paused_s
        self.example = other.example or self.example

    def told(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "client": self.name,
            "address": self.address,
            "account": self.account,
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
    """All clients. Of those that have no connection, those who were seen longest ago are summed up as others."""

    def __init__(self, quotas: Quotas = NO_QUOTAS, now_ms: Callable[[], int] = lambda: 0, *, prefix: int = 128) -> None:
        """`prefix`: bits of an address of IPv6 that are one client's."""
        self._quotas = quotas
        self._prefix = prefix
        self._now_ms = now_ms
        self._by_name: OrderedDict[str, Client] = OrderedDict()
        self._of_accounts: dict[str, Allowance] = {}  # what each has at all its addresses: those of a file, and few
        self._look_at = REMEMBERED + AT_ONCE  # so many, and some may be forgotten
        self._others = Client("", now_ms=now_ms)
        self._others.name = OTHERS
        self.forgotten = 0  # that are in others
        self.leaving = trio.Event()

    def at(self, address: str) -> Client:
        """Who is at an address. One that is exempt by itself is a client of its own."""
        return self.of(address if self._quotas.spares(address) else household(address, self._prefix))

    def of(self, address: str, account: str = "") -> Client:
        """The client of an address or a network, or of an account there; a new one where there is none."""
        name = name_of(address, account)
        client = self._by_name.get(name)
        if client is None:
            shared = self._shared(account) if account else None
            client = Client(address, self._quotas, self._now_ms, account=account, shared=shared)
            self._by_name[name] = client
            if len(self._by_name) > self._look_at:
                self._forget_some()
        else:
            self._by_name.move_to_end(name)
        return client

    def _shared(self, account: str) -> Allowance:
        """What an account has at all its addresses together."""
        allowance = self._of_accounts.get(account)
        if allowance is None:
            allowance = self._of_accounts[account] = Allowance("account_")
            allowance.limit(self._quotas.account)
        return allowance

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
        self._others.add(oldest)

    def limit(self, quotas: Quotas) -> None:
        """Have these quotas from now on."""
        self._quotas = quotas
        for allowance in self._of_accounts.values():
            allowance.limit(quotas.account)
        for client in self._by_name.values():
            client.limit(quotas)

    def leave(self) -> None:
        """Nobody is paused any more: the daemon ends, and takes what has come."""
        self.leaving.set()
        for client in self._by_name.values():
            client.wake()

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
