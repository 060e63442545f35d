"""Networks of settings and accounts, and the client addresses that HTTP proxies report.

Each proxy appends the address of its own client to `X-Forwarded-For` or `Forwarded` (RFC 7239). Only the entries after
the last address that is not a trusted proxy are reliable: a client may have written the earlier ones.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address


class Networks:
    """A set of networks. The empty set contains every address."""

    def __init__(self, networks: Iterable[IPv4Network | IPv6Network] = ()) -> None:
        self._networks = tuple(networks)

    def __bool__(self) -> bool:
        return bool(self._networks)

    def __iter__(self) -> Iterator[IPv4Network | IPv6Network]:
        return iter(self._networks)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Networks) and self._networks == other._networks

    def __hash__(self) -> int:
        return hash(self._networks)

    def __str__(self) -> str:
        return ",".join(map(str, self._networks))

    def has(self, address: str) -> bool:
        """Return whether an address is in one of the networks; False for an invalid address."""
        if not self._networks:
            return True
        found = parse_address(address)
        return found is not None and any(found in network for network in self._networks)


ANY = Networks()


def parse_networks(text: str) -> Networks:
    """Parse networks and addresses, separated by commas. Raise ValueError. IPv4-mapped IPv6 networks become IPv4.

    >>> str(parse_networks("10.0.0.0/8, ::1,::ffff:192.0.2.0/120"))
    '10.0.0.0/8,::1/128,192.0.2.0/24'
    """
    return Networks(_unmapped(ip_network(word)) for part in text.split(",") if (word := part.strip()))


def _unmapped(network: IPv4Network | IPv6Network) -> IPv4Network | IPv6Network:
    mapped = network.network_address.ipv4_mapped if isinstance(network, IPv6Network) else None
    if mapped is None or network.prefixlen < 96:
        return network
    return IPv4Network((mapped, network.prefixlen - 96))


def parse_address(text: str) -> Address | None:
    """Parse an address without its zone; None if it is invalid. An IPv4-mapped address becomes IPv4.

    >>> parse_address("::ffff:192.0.2.1"), parse_address("fe80::1%eth0"), parse_address("local")
    (IPv4Address('192.0.2.1'), IPv6Address('fe80::1'), None)
    """
    try:
        found = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, IPv6Address) else found


KEPT_PREFIXES = 1000  # clients connect again and again


@lru_cache(KEPT_PREFIXES)
def client_prefix(text: str, prefix: int) -> str:
    """Return the address, or the IPv6 prefix of `prefix` bits, that identifies a client: one host may use all
    addresses of an IPv6 prefix. Loopback and link-local addresses are returned unchanged.

    >>> [client_prefix(text, 64) for text in ("192.0.2.1", "2001:db8::1:2:3:4", "::1", "local")]
    ['192.0.2.1', '2001:db8::/64', '::1', 'local']
    """
    found = parse_address(text)
    if (
        isinstance(found, IPv6Address)
        and prefix < found.max_prefixlen
        and not (found.is_loopback or found.is_link_local)
    ):
        return str(IPv6Network((found, prefix), strict=False))
    return text if found is None else str(found)


MAX_HOPS = 32
_WORD = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PAIR = re.compile(rf"\s*(?P<name>{_WORD})=(?P<value>{_WORD}|\"(?:[^\"\\]|\\.)*\")\s*")
_NODE = re.compile(r"(?P<v4>[0-9.]+)(?::\d{1,5})?|\[(?P<bare>[0-9A-Fa-f:.]+)\](?::\d{1,5})?|(?P<v6>[0-9A-Fa-f:.]+)")


def forwarded_client(headers: Mapping[str, str], peer: str, trusted: Networks) -> str:
    """Return the client's address for a request that the trusted proxy `peer` forwarded; `peer` if no header names it.

    `headers` are by name in lower case, with values of one name joined by commas. Raise ValueError for an invalid
    header, and if the two headers disagree: one of them may come from the client.

    >>> from tsd.auth.networks import parse_networks
    >>> forwarded_client({"x-forwarded-for": "1.1.1.1, 192.0.2.7, 10.0.0.2"}, "10.0.0.1", parse_networks("10.0.0.0/8"))
    '192.0.2.7'
    """
    found = {
        _nearest_untrusted([peer, *reversed(read(headers[name]))], trusted)
        for name, read in (("x-forwarded-for", _split_list), ("forwarded", _forwarded_for))
        if name in headers
    }
    if len(found) > 1:
        raise ValueError(f"Forwarded and X-Forwarded-For name different clients: {' and '.join(sorted(found))}")
    return found.pop() if found else peer


def _nearest_untrusted(hops: list[str], trusted: Networks) -> str:
    """Return the first hop, nearest first, that is not a trusted proxy; the last hop if all are."""
    if len(hops) > MAX_HOPS:
        raise ValueError(f"more than {MAX_HOPS} hops")
    address = hops[0]
    for hop in hops[1:]:
        if not trusted.has(address):
            break
        address = _address(hop)
    return address


def _split_list(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")]


def _forwarded_for(text: str) -> list[str]:
    """Return the `for` parameter of each element of a Forwarded header."""
    hops, at = [], 0
    hop: str | None = None
    while True:
        match = _PAIR.match(text, at)
        if match is None:
            raise ValueError(f"invalid Forwarded: {text[at : at + 40]!r}")
        if match["name"].lower() == "for":
            if hop is not None:
                raise ValueError("a Forwarded element with two clients")
            hop = match["value"]
        at = match.end()
        if at == len(text) or text[at] == ",":
            if hop is None:
                raise ValueError("a Forwarded element without a client")
            hops.append(re.sub(r"\\(.)", r"\1", hop[1:-1]) if hop.startswith('"') else hop)
            hop = None
            if at == len(text):
                return hops
        elif text[at] != ";":
            raise ValueError(f"invalid Forwarded: {text[at : at + 40]!r}")
        at += 1


def _address(text: str) -> str:
    """Return the address of a hop, without its port."""
    match = _NODE.fullmatch(text)
    found = match and parse_address(match["v4"] or match["bare"] or match["v6"])
    if not found:
        raise ValueError(f"invalid address: {text[:60]!r}")
    return str(found)
