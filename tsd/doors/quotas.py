"""What one client may do, and one account from all its addresses; how much of it each of them has left."""

from ipaddress import ip_network
from typing import NamedTuple

import trio

from tsd.codec.uid import Kind
from tsd.errors import BadLine
from tsd.ingest.bucket import Bucket
from tsd.ingest.growth import MINUTE_S, too_many_names
from tsd.limit_settings import LimitSettings, Network, exemptions

BURST_S = 10  # so many seconds' worth of lines may come at once: agents send in bursts

QUOTAS = (
    "tsd.network.connections_per_address", "tsd.quota.lines_per_second", "tsd.quota.new_names_per_minute",
    "tsd.quota.account_lines_per_second", "tsd.quota.account_new_names_per_minute", "tsd.quota.exempt",
)  # fmt: skip


class Rates(NamedTuple):
    """How many lines and new names may come; 0: any."""

    lines_per_s: int = 0
    names_per_minute: int = 0


class Quotas(NamedTuple):
    """What one client may do, and who has no bounds; 0: anything."""

    lines_per_s: int = 0
    names_per_minute: int = 0
    connections: int = 0
    account: Rates = Rates()  # from all its addresses together
    exempt: tuple[Network, ...] = ()
    exempt_accounts: frozenset[str] = frozenset()

    def spares(self, address: str, account: str = "") -> bool:
        """Whether a client has no quotas: where it is, or whoever it has shown to be."""
        if account in self.exempt_accounts:
            return True
        try:
            found = ip_network(address)
        except ValueError:
            return not address  # of no network: this process
        return any(_lies_in(found, network) for network in self.exempt)


def _lies_in(one: Network, other: Network) -> bool:
    return type(one) is type(other) and one.subnet_of(other)  # type: ignore[arg-type] # of one version, then


NO_QUOTAS = Quotas()


def quotas_of(settings: LimitSettings) -> Quotas:
    """The quotas that are configured."""
    account = Rates(settings.account_lines, settings.account_names)
    exempt, exempt_accounts = exemptions(settings.quota_exempt)
    return Quotas(
        settings.quota_lines, settings.quota_names, settings.address_connections, account, exempt, exempt_accounts
    )


class Allowance:
    """The lines and new names that may still come from somebody."""

    __slots__ = ("_lines", "_names", "_rates", "lines_key", "names_key")

    def __init__(self, whose: str = "") -> None:
        """`whose` is what the settings' names have that bound it, e.g. account_."""
        self.lines_key = f"tsd.quota.{whose}lines_per_second"
        self.names_key = f"tsd.quota.{whose}new_names_per_minute"
        self._rates = Rates()
        self._lines: Bucket | None = None
        self._names: Bucket | None = None

    def limit(self, rates: Rates) -> None:
        """Have these rates from now on. One that stays as it was forgives nothing."""
        before, self._rates = self._rates, rates
        if rates.lines_per_s != before.lines_per_s:
            self._lines = _bucket(rates.lines_per_s, rates.lines_per_s * BURST_S)
        if rates.names_per_minute != before.names_per_minute:
            self._names = _bucket(rates.names_per_minute / MINUTE_S, rates.names_per_minute)

    @property
    def is_bounded(self) -> bool:
        """Whether anything is."""
        return any(self._rates)

    @property
    def is_full(self) -> bool:
        """Whether all that was spent has come back."""
        now_s = trio.current_time()
        return all(one is None or one.is_full(now_s=now_s) for one in (self._lines, self._names))

    def spend(self, lines: int) -> None:
        """So many lines came."""
        if self._lines is not None:
            self._lines.spend(lines, now_s=trio.current_time())

    @property
    def debt_s(self) -> float:
        """How long until it has caught up with the lines that came."""
        return 0.0 if self._lines is None else self._lines.debt_s(now_s=trio.current_time())

    def why_no_name(self, kind: Kind, name: bytes) -> BadLine | None:
        """Why no new name may come now."""
        if self._names is None or self._names.has(now_s=trio.current_time()):
            return None
        return too_many_names(kind, name, self._rates.names_per_minute, self.names_key)

    def named(self) -> None:
        """A new name came."""
        if self._names is not None:
            self._names.take(now_s=trio.current_time())


def _bucket(rate: float, burst: float) -> Bucket | None:
    return Bucket(rate, burst, now_s=trio.current_time()) if rate else None
