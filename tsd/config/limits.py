"""Settings that limit clients, and the clients that they do not limit."""

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network

from tsd.config.keys import setting

Network = IPv4Network | IPv6Network
MIN_REJECTED_BYTES = 1 << 20  # of the log of rejected lines, which drops its oldest file


def exemptions(text: str) -> tuple[tuple[Network, ...], frozenset[str]]:
    """Return networks and accounts of `tsd.quota.exempt`. Raise ValueError.

    >>> exemptions("10.0.0.0/8, @collector, ::ffff:192.0.2.1")
    ((IPv4Network('10.0.0.0/8'), IPv4Network('192.0.2.1/32')), frozenset({'collector'}))
    """
    words = [word for part in text.split(",") if (word := part.strip())]
    networks = tuple(_unmapped(ip_network(word)) for word in words if not word.startswith("@"))
    return networks, frozenset(word[1:] for word in words if word.startswith("@"))


def _unmapped(network: Network) -> Network:
    """Return an IPv4-mapped IPv6 network as IPv4, which is how peers are named."""
    mapped = network.network_address.ipv4_mapped if isinstance(network, IPv6Network) else None
    return network if mapped is None or network.prefixlen < 96 else IPv4Network((mapped, network.prefixlen - 96))


# fmt: off


@dataclass(frozen=True)
class LimitSettings:
    """Settings that limit one client, the number of new names, and the log of rejected lines."""

    address_connections: int = setting(
        "tsd.network.connections_per_address", 0,
        "Open connections of one address; further ones are closed at once. Agents behind a NAT share an address. 0:"
        " unlimited.", low=0)
    line_timeout_s: int = setting(
        "tsd.network.line_timeout", 0,
        "Time from the first byte of a telnet line to its end, after which the connection is closed. Scripts that "
        "write through a buffer send half a line until the buffer is full again. 0: unlimited.", "s", low=0)
    partial_input_memory: int = setting(
        "tsd.network.partial_input_memory", 64 << 20,
        "Memory for partial lines and request heads of all connections; those up to 4 KiB do not count. Above it, "
        "the connection that has held one for longest is closed.", "bytes", low=1 << 20)
    quota_lines: int = setting(
        "tsd.quota.lines_per_second", 0,
        "Lines of one client, with a burst of ten seconds. Above it, the daemon stops reading from the client until"
        " its quota recovers; nothing is lost. HTTP is answered with 429 if that takes over 10 s. 0: unlimited.",
        "lines/s", low=0)
    quota_names: int = setting(
        "tsd.quota.new_names_per_minute", 0,
        "New names of one client that get a UID. Lines with further new names are rejected, lines with known names "
        "are stored. 0: unlimited.", "names/min", low=0)
    names_pace: int = setting(
        "tsd.quota.new_names_pace", 100,
        "New names of one client that get a UID each second, after a burst of 1,000 seconds (100,000 names). Above it, "
        "the daemon stops reading from the client for a while; nothing is refused. Clients with the role admin are "
        "exempt, and so are imports. 0: unlimited.", "names/s", low=0)
    account_lines: int = setting(
        "tsd.quota.account_lines_per_second", 0,
        "Lines of one account, from all its addresses together. 0: unlimited.", "lines/s", low=0)
    account_names: int = setting(
        "tsd.quota.account_new_names_per_minute", 0,
        "New names of one account, from all its addresses together. 0: unlimited.", "names/min", low=0)
    quota_exempt: str = setting(
        "tsd.quota.exempt", "",
        "Networks (CIDR) without quotas and without a limit on connections, and accounts (@NAME) without quotas, "
        "separated by commas: for example a relay that sends for many hosts.")
    max_series: int = setting(
        "tsd.ingest.max_series", 0,
        "Active series: those that sent a point within tsd.ingest.series_ttl. Each takes about 400 bytes of memory."
        " Lines of further series are rejected. 0: unlimited.", "series", low=0)
    names_per_minute: int = setting(
        "tsd.uid.new_per_minute", 0,
        "New names of all kinds and clients that get a UID. Consider the first hour of a new fleet. 0: unlimited.",
        "names/min", low=0)
    rejected_bytes: int = setting(
        "tsd.rejected.max_bytes", 64 << 20,
        "Size of the log of rejected lines, which `tsd rejected` lists and replays. The oldest lines are deleted "
        "first. 0: no log.", "bytes", low=0)
