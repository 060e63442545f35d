"""The settings of how much one client, and all that is new, may take; and of what is kept of refused lines."""

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network

from tsd.setting import setting as _key

Network = IPv4Network | IPv6Network
LEAST_REJECTED = 1 << 20  # bytes for refused lines: the oldest leave a file at a time


def exemptions(text: str) -> tuple[tuple[Network, ...], frozenset[str]]:
    """Networks and accounts of `tsd.quota.exempt`; raises ValueError.

    >>> exemptions("10.0.0.0/8, @collector, ::ffff:192.0.2.1")
    ((IPv4Network('10.0.0.0/8'), IPv4Network('192.0.2.1/32')), frozenset({'collector'}))
    """
    words = [word for part in text.split(",") if (word := part.strip())]
    networks = tuple(_unmapped(ip_network(word)) for word in words if not word.startswith("@"))
    return networks, frozenset(word[1:] for word in words if word.startswith("@"))


def _unmapped(network: Network) -> Network:
    """One of IPv4 that is written as of IPv6, as one of IPv4: so are addresses named."""
    mapped = network.network_address.ipv4_mapped if isinstance(network, IPv6Network) else None
    return network if mapped is None or network.prefixlen < 96 else IPv4Network((mapped, network.prefixlen - 96))


@dataclass(frozen=True)
class LimitSettings:
    """A part of Config."""

    address_connections: int = _key(
        "tsd.network.connections_per_address", 0, "open connections of one address; one more is closed at once and "
        "counted. 0: any", low=0,
    )  # fmt: skip
    line_timeout_s: int = _key(
        "tsd.network.line_timeout", 0, "close a telnet connection whose client has begun a line and not ended it for "
        "so long. 0: never", "s", low=0,
    )  # fmt: skip
    unfinished_memory: int = _key(
        "tsd.network.unfinished_memory", 64 << 20, "most bytes that lines and requests' heads which are not whole yet "
        "take in all; past it who has held more than 4 KiB of them for longest is hung up on", "bytes", low=1 << 20,
    )  # fmt: skip
    quota_lines: int = _key(
        "tsd.quota.lines_per_second", 0, "lines of one client; from one that sends more, no more is read until its "
        "quota has caught up, and over HTTP it is answered 429. 0: any", "lines/s", low=0,
    )  # fmt: skip
    quota_names: int = _key(
        "tsd.quota.new_names_per_minute", 0, "new names of one client that get a UID; lines with one more are refused. "
        "0: any", "names/min", low=0,
    )  # fmt: skip
    account_lines: int = _key(
        "tsd.quota.account_lines_per_second", 0, "lines of one account, from all addresses that show it together. "
        "0: any", "lines/s", low=0,
    )  # fmt: skip
    account_names: int = _key(
        "tsd.quota.account_new_names_per_minute", 0, "new names of one account, from all addresses that show it "
        "together. 0: any", "names/min", low=0,
    )  # fmt: skip
    quota_exempt: str = _key(
        "tsd.quota.exempt", "", "networks (CIDR, with commas between) that have no quotas, and no bound on "
        "connections per address; accounts (@NAME) that have no quotas"
    )  # fmt: skip
    max_series: int = _key(
        "tsd.ingest.max_series", 0, "series that are known at a time (those that sent something within "
        "tsd.ingest.series_idle); lines of one more are refused. 0: any", "series", low=0,
    )  # fmt: skip
    names_per_minute: int = _key(
        "tsd.uid.new_per_minute", 0, "new names of all kinds and clients that get a UID; lines with one more are "
        "refused. 0: any", "names/min", low=0,
    )  # fmt: skip
    rejected_bytes: int = _key(
        "tsd.rejected.max_bytes", 64 << 20, "most bytes of refused lines that are kept on disk, for tsd rejected; the "
        "oldest leave. 0: none is kept", "bytes", low=0,
    )  # fmt: skip
    rejected_per_s: int = _key(
        "tsd.rejected.per_second", 1000, "refused lines that are kept of each second, ten seconds' worth at once, half "
        "of it from one client; others are only counted", "lines/s", low=1,
    )  # fmt: skip
