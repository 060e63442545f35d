"""Clients: their counts and their quotas.

A client is an address (or an IPv6 prefix), and each account at each address: hosts that share a token are separate
clients, and so are accounts that share an address.

`Client.debt_s` is how long a client's connections are not read, computed from the quotas of the client and of its
account. `Quotas` are the configured limits, and `QuotaUsage` measures a client or an account against them.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from ipaddress import ip_network
from typing import Any, NamedTuple

import trio

from tsd.auth.networks import client_prefix
from tsd.codec.names import Kind
from tsd.config.limits import LimitSettings, Network, exemptions
from tsd.errors import BadLine
from tsd.ingest.limits import MINUTE_S, RefusedLine, TokenBucket, too_many_names
from tsd.lazy import LazyLogger

log = LazyLogger(__name__)

PACE_BURST_S = 1000  # a collector with tens of thousands of new series connects without a pause
BURST_S = 10  # a burst may hold the lines of this many seconds, because agents send in bursts

QUOTAS = (
    "tsd.network.connections_per_address", "tsd.quota.lines_per_second", "tsd.quota.new_names_per_minute",
    "tsd.quota.new_names_pace", "tsd.quota.account_lines_per_second", "tsd.quota.account_new_names_per_minute",
    "tsd.quota.exempt",
)  # fmt: skip


class Quotas(NamedTuple):
    """The limits of one client and of one account, and the clients without limits. 0: unlimited."""

    lines_per_s: int = 0
    names_per_minute: int = 0
    connections: int = 0
    account_lines_per_s: int = 0  # of an account at all its addresses together
    account_names_per_minute: int = 0
    names_pace: int = 0  # names/s; a client above it is not read from for a while
    exempt: tuple[Network, ...] = ()
    exempt_accounts: frozenset[str] = frozenset()

    def exempts(self, address: str, account: str = "") -> bool:
        """Return whether a client has no quotas, by its address or its account."""
        if account in self.exempt_accounts:
            return True
        if not self.exempt:
            return not address  # a local peer
        try:
            found = ip_network(address)
        except ValueError:
            return not address  # a local peer
        return any(_is_subnet(found, network) for network in self.exempt)


def _is_subnet(one: Network, other: Network) -> bool:
    return type(one) is type(other) and one.subnet_of(other)  # type: ignore[arg-type] # of one version


NO_QUOTAS = Quotas()


def configured_quotas(settings: LimitSettings) -> Quotas:
    """Return the quotas of the configuration."""
    exempt, exempt_accounts = exemptions(settings.quota_exempt)
    return Quotas(
        lines_per_s=settings.quota_lines,
        names_per_minute=settings.quota_names,
        connections=settings.address_connections,
        account_lines_per_s=settings.account_lines,
        account_names_per_minute=settings.account_names,
        names_pace=settings.names_pace,
        exempt=exempt,
        exempt_accounts=exempt_accounts,
    )


class QuotaUsage:
    """The lines and new names that a client or an account has sent, measured against its quotas."""

    __slots__ = ("_lines", "_lines_per_s", "_names", "_names_per_minute", "lines_key", "names_key")

    def __init__(self, kind: str = "") -> None:
        """`kind` is part of the names of the settings, e.g. account_."""
        self.lines_key = f"tsd.quota.{kind}lines_per_second"
        self.names_key = f"tsd.quota.{kind}new_names_per_minute"
        self._lines_per_s = self._names_per_minute = 0
        self._lines: TokenBucket | None = None
        self._names: TokenBucket | None = None

    def set_rates(self, lines_per_s: int, names_per_minute: int) -> None:
        """Apply these rates. A rate that does not change keeps its debt."""
        if lines_per_s != self._lines_per_s:
            self._lines = _bucket(lines_per_s, lines_per_s * BURST_S)
        if names_per_minute != self._names_per_minute:
            self._names = _bucket(names_per_minute / MINUTE_S, names_per_minute)
        self._lines_per_s, self._names_per_minute = lines_per_s, names_per_minute

    @property
    def is_limited(self) -> bool:
        """Return whether a quota applies."""
        return bool(self._lines_per_s or self._names_per_minute)

    @property
    def is_full(self) -> bool:
        """Return whether nothing was spent recently."""
        now_s = trio.current_time()
        return all(one is None or one.is_full(now_s=now_s) for one in (self._lines, self._names))

    def spend(self, lines: int) -> None:
        """Count received lines."""
        if self._lines is not None:
            self._lines.spend(lines, now_s=trio.current_time())

    @property
    def debt_s(self) -> float:
        """Return the time until the rate allows the lines that were received."""
        return 0.0 if self._lines is None else self._lines.debt_s(now_s=trio.current_time())

    def check_name(self, kind: Kind, name: bytes) -> BadLine | None:
        """Return the error for a new name if none is allowed now."""
        if self._names is None or self._names.has(now_s=trio.current_time()):
            return None
        return too_many_names(kind, name, self._names_per_minute, self.names_key)

    def count_name(self) -> None:
        """Count a new name."""
        if self._names is not None:
            self._names.take(now_s=trio.current_time())


def _bucket(rate: float, burst: float) -> TokenBucket | None:
    return TokenBucket(rate, burst, now_s=trio.current_time()) if rate else None


MAX_IDLE_CLIENTS = 4096  # clients without a connection that are kept
EVICTION_BATCH = 256  # clients evicted together: finding them takes a pass over all
EXAMPLE_BYTES = 300
OTHERS = "others"


class Example(NamedTuple):
    """The last refused line of a client."""

    line: bytes  # its beginning
    reason: str
    message: str
    time_ms: int
    peer: str  # address and port

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        line = self.line.decode("latin-1")
        return {
            "line": line,
            "reason": self.reason,
            "message": self.message,
            "time": self.time_ms,
            "peer": self.peer,
        }


def client_name(address: str, account: str) -> str:
    """Return a client's name.

    >>> client_name("10.0.0.1", "web-agents"), client_name("10.0.0.1", "")
    ('web-agents@10.0.0.1', '10.0.0.1')
    """
    return f"{account}@{address}" if account else address


class Client:
    """The counts and quotas of one client, over all its connections."""

    __slots__ = (
        "_account_usage", "_max_connections", "_own_usage", "_pace", "_pace_rate", "_quotas_changed",
        "_throttled_changed_s", "_throttled_s", "_usages",
        "accepted", "account", "address", "bytes", "connections", "connections_refused", "connections_throttled",
        "connections_total", "example",
        "first_ms", "is_limited", "last_ms", "lines", "name", "name_example", "names_over_pace",
        "new_names", "new_series", "now_ms", "refused", "turn",
    )  # fmt: skip

    def __init__(
        self,
        address: str,
        quotas: Quotas = NO_QUOTAS,
        now_ms: Callable[[], int] = lambda: 0,
        *,
        account: str = "",
        account_usage: QuotaUsage | None = None,
    ) -> None:
        """`address` may be an IPv6 prefix. `account_usage` is shared by all clients of the account."""
        self.name = client_name(address, account)
        self.address = address
        self.account = account
        self.now_ms = now_ms
        self.first_ms = self.last_ms = now_ms()
        # Open connections. An address counts all of them, an account those that are authenticated as it.
        self.connections = 0
        self.connections_total = 0
        self.connections_refused = 0  # over the limit
        self.connections_throttled = 0  # now
        self.lines = 0  # of all kinds, commands included
        self.bytes = 0
        self.accepted = 0  # data points
        self.refused: Counter[str] = Counter()  # lines by reason
        self.example: Example | None = None
        self.new_names = 0  # names that were assigned a UID
        self.name_example = ""
        self.names_over_pace = 0
        self.new_series = 0
        self.turn = trio.Lock()  # orders the client's large blocks
        self._throttled_s = 0.0  # up to the last change of `connections_throttled`
        self._throttled_changed_s = 0.0  # time of that change
        self._own_usage = QuotaUsage()
        self._account_usage = account_usage
        self._usages: tuple[QuotaUsage, ...] = ()  # those with a quota
        self._pace_rate = 0
        self._pace: TokenBucket | None = None
        self.is_limited = False
        self._max_connections = 0
        self._quotas_changed: trio.Event | None = None  # while a connection is throttled
        self.set_quotas(quotas)

    def set_quotas(self, quotas: Quotas) -> None:
        """Apply quotas, and wake throttled connections. The account's rates are set by `Clients`."""
        own = NO_QUOTAS if quotas is NO_QUOTAS or quotas.exempts(self.address, self.account) else quotas
        self._max_connections = own.connections
        self._own_usage.set_rates(own.lines_per_s, own.names_per_minute)
        if own.names_pace != self._pace_rate:
            self._pace_rate = own.names_pace
            self._pace = _bucket(own.names_pace, own.names_pace * PACE_BURST_S)
        shared = None if own is NO_QUOTAS else self._account_usage
        self._usages = tuple(one for one in (self._own_usage, shared) if one is not None and one.is_limited)
        self.is_limited = bool(self._usages)
        self.wake()

    def wake(self) -> None:
        """Let throttled connections check their quotas again."""
        if self._quotas_changed is not None:
            self._quotas_changed.set()
            self._quotas_changed = None

    @property
    def may_connect(self) -> bool:
        """Return whether one more connection is allowed."""
        return not self._max_connections or self.connections < self._max_connections

    @property
    def may_be_evicted(self) -> bool:
        """Return whether there is no connection and no debt: a new client would start without debt."""
        has_pace = self._pace is None or self._pace.is_full(now_s=trio.current_time())
        return not (self.connections or self.connections_throttled) and self._own_usage.is_full and has_pace

    def count_received(self, lines: int) -> None:
        """Count received lines of any kind."""
        self.lines += lines
        for usage in self._usages:
            usage.spend(lines)

    def count_bytes(self, size: int) -> None:
        """Count received bytes of any kind."""
        self.bytes += size
        self.last_ms = self.now_ms()

    def count_lines(self, accepted: int, refusals: Sequence[RefusedLine], peer: str = "") -> None:
        """Count processed lines with data points; `peer` sent them."""
        self.count_received(accepted + len(refusals))
        self.accepted += accepted
        self.last_ms = self.now_ms()
        if refusals:
            self.refused.update([refusal.error.reason for refusal in refusals])
            line, error, _ = refusals[-1]
            self.example = Example(line[:EXAMPLE_BYTES], error.reason, str(error)[:EXAMPLE_BYTES], self.last_ms, peer)

    @property
    def debt_s(self) -> float:
        """Return the time until the quotas and the pace of new names allow what was received; 0: not throttled."""
        if not self.is_limited:
            return 0.0
        pace_s = self.pace_debt_s
        self.is_limited = bool(self._usages or pace_s)
        return max(pace_s, self.quota_debt_s)

    @property
    def quota_debt_s(self) -> float:
        """Return the time until the quotas allow the lines that were received."""
        return max([usage.debt_s for usage in self._usages], default=0.0)

    @property
    def pace_debt_s(self) -> float:
        """Return the time until the pace allows the new names that were received."""
        return 0.0 if self._pace is None else self._pace.debt_s(now_s=trio.current_time())

    def pace_name(self) -> None:
        """Count a new name against the pace. Beyond it the client is not read from, and the log says so once."""
        if self._pace is None:
            return
        was_over = self.pace_debt_s > 0
        self._pace.spend(1, now_s=trio.current_time())
        if not self.pace_debt_s:
            return
        self.is_limited = True
        self.names_over_pace += 1
        if not was_over:
            log.warning(
                "client.new_names_paced", client=self.name, new_names=self.new_names, example=self.name_example,
                names_per_s=self._pace_rate,
            )  # fmt: skip

    @property
    def limiting_key(self) -> str:
        """Return the setting that throttles the client most."""
        return max(self._usages, key=lambda one: one.debt_s, default=self._own_usage).lines_key

    async def throttle(self, draining: trio.Event) -> None:
        """Wait until the quotas allow what was received, or `draining` is set: received lines are processed then."""
        while (debt_s := self.debt_s) and not draining.is_set():
            if self._quotas_changed is None:
                self._quotas_changed = trio.Event()
            self._add_throttled(1)
            try:
                with trio.move_on_after(debt_s):
                    await self._quotas_changed.wait()
            finally:
                self._add_throttled(-1)

    def _add_throttled(self, connections: int) -> None:
        self._throttled_s = self.throttled_s
        self._throttled_changed_s = trio.current_time()
        self.connections_throttled += connections

    @property
    def throttled_s(self) -> float:
        """Return the time for which connections have been throttled, summed over connections."""
        if not self.connections_throttled:
            return self._throttled_s
        return self._throttled_s + self.connections_throttled * (trio.current_time() - self._throttled_changed_s)

    def check_name(self, kind: Kind, name: bytes) -> BadLine | None:
        """Return the error for a new name if the quotas allow none now."""
        return next(filter(None, (usage.check_name(kind, name) for usage in self._usages)), None)

    def count_name(self, kind: Kind, name: bytes) -> None:
        """Count a name that is assigned a UID."""
        self.new_names += 1
        self.name_example = f"{kind.value} {name[:EXAMPLE_BYTES].decode('latin-1')}"
        for usage in self._usages:
            usage.count_name()

    def add(self, other: "Client") -> None:
        """Add the counts of a client without connections."""
        self.connections_total += other.connections_total
        self.connections_refused += other.connections_refused
        self.lines += other.lines
        self.bytes += other.bytes
        self.last_ms = max(self.last_ms, other.last_ms)
        self.accepted += other.accepted
        self.refused.update(other.refused)
        self.new_names += other.new_names
        self.names_over_pace += other.names_over_pace
        self.new_series += other.new_series
        self._throttled_s += other.throttled_s
        self.example = other.example or self.example

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
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
            "refused_example": self.example and self.example.as_json(),
            "new_names": self.new_names,
            "names_over_pace": self.names_over_pace,
            "new_name_example": self.name_example,
            "new_series": self.new_series,
            "paused_ms": round(self.throttled_s * 1000),
            "pausing": self.connections_throttled,
            "first_seen": self.first_ms,
            "last_seen": self.last_ms,
        }


class ClientStatistics(NamedTuple):
    """A snapshot of all clients."""

    known: int
    connections_throttled: int  # now
    throttled_ms: int  # of all connections together
    names_over_pace: int


class Clients:
    """All clients. The least recently used clients without connections are evicted; `others` sums up their counts."""

    def __init__(
        self,
        quotas: Quotas = NO_QUOTAS,
        now_ms: Callable[[], int] = lambda: 0,
        *,
        prefix: int = 128,
        max_idle: int = MAX_IDLE_CLIENTS,
        eviction_batch: int = EVICTION_BATCH,
    ) -> None:
        """`prefix`: bits of an IPv6 address that identify one client. `max_idle`: clients without a connection that are
        kept; above it at least `eviction_batch` are evicted together."""
        self._max_idle = max_idle
        self._eviction_batch = eviction_batch
        self._quotas = quotas
        self._prefix = prefix
        self._now_ms = now_ms
        self._by_name: OrderedDict[str, Client] = OrderedDict()
        self._account_usages: dict[str, QuotaUsage] = {}  # the accounts of a file are few
        self._evict_at = max_idle + eviction_batch  # clients
        self._others = Client("", now_ms=now_ms)
        self._others.name = OTHERS
        self.evicted = 0  # clients
        self.draining = trio.Event()

    def at(self, address: str) -> Client:
        """Return the client of an address. An exempt IPv6 address is a client of its own, not part of its prefix."""
        return self.of(address if self._quotas.exempts(address) else client_prefix(address, self._prefix))

    def of(self, address: str, account: str = "") -> Client:
        """Return the client of an address or prefix, or of an account there. Creates it if it is new."""
        name = client_name(address, account)
        client = self._by_name.get(name)
        if client is None:
            account_usage = self._account_usage(account) if account else None
            client = Client(address, self._quotas, self._now_ms, account=account, account_usage=account_usage)
            self._by_name[name] = client
            if len(self._by_name) > self._evict_at:
                self._evict_idle()
        else:
            self._by_name.move_to_end(name)
        return client

    def _account_usage(self, account: str) -> QuotaUsage:
        """Return the usage of an account at all its addresses together."""
        usage = self._account_usages.get(account)
        if usage is None:
            usage = self._account_usages[account] = QuotaUsage("account_")
            usage.set_rates(self._quotas.account_lines_per_s, self._quotas.account_names_per_minute)
        return usage

    def _evict_idle(self) -> None:
        """Evict the least recently used clients that may be evicted, except the last one, which is new."""
        *idle, _ = (client for client in self._by_name.values() if client.may_be_evicted)
        for client in idle[: max(0, len(idle) + 1 - self._max_idle)]:
            del self._by_name[client.name]
            self.evicted += 1
            self._others.add(client)
        self._evict_at = len(self._by_name) + max(0, self._max_idle - len(idle) - 1) + self._eviction_batch

    def set_quotas(self, quotas: Quotas) -> None:
        """Apply quotas to all clients and accounts."""
        self._quotas = quotas
        for usage in self._account_usages.values():
            usage.set_rates(quotas.account_lines_per_s, quotas.account_names_per_minute)
        for client in self._by_name.values():
            client.set_quotas(quotas)

    def drain(self) -> None:
        """Stop throttling: the daemon shuts down and processes all received input."""
        self.draining.set()
        for client in self._by_name.values():
            client.wake()

    def statistics(self) -> ClientStatistics:
        """Return a snapshot of all clients."""
        throttled_s = sum(client.throttled_s for client in self)
        throttled = sum(client.connections_throttled for client in self)
        over = sum(client.names_over_pace for client in self)
        return ClientStatistics(len(self), throttled, round(throttled_s * 1000), over)

    def __iter__(self) -> Iterator[Client]:
        yield from self._by_name.values()
        if self.evicted:
            yield self._others

    def __len__(self) -> int:
        return len(self._by_name)
