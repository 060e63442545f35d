"""Networks that settings and accounts name, and the addresses that are in them."""

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address


class Networks:
    """Some networks. None means: any address."""

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
        """Whether an address is in one of them; what is no address is in none."""
        if not self._networks:
            return True
        found = read_address(address)
        return found is not None and any(found in network for network in self._networks)


ANY = Networks()


def read_networks(text: str) -> Networks:
    """Networks, or single addresses, with commas between; raises ValueError. One of IPv4 that is written as of IPv6 is
    one of IPv4.

    >>> str(read_networks("10.0.0.0/8, ::1,::ffff:192.0.2.0/120"))
    '10.0.0.0/8,::1/128,192.0.2.0/24'
    """
    return Networks(_unmapped(ip_network(word)) for part in text.split(",") if (word := part.strip()))


def _unmapped(network: IPv4Network | IPv6Network) -> IPv4Network | IPv6Network:
    mapped = network.network_address.ipv4_mapped if isinstance(network, IPv6Network) else None
    if mapped is None or network.prefixlen < 96:
        return network
    return IPv4Network((mapped, network.prefixlen - 96))


def read_address(text: str) -> Address | None:
    """An address, without its zone; None where it is none.

    >>> read_address("::ffff:192.0.2.1"), read_address("fe80::1%eth0"), read_address("here")
    (IPv4Address('192.0.2.1'), IPv6Address('fe80::1'), None)
    """
    try:
        found = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, IPv6Address) else found


def household(text: str, prefix: int) -> str:
    """Who an address belongs to: of IPv6 one customer, and one machine, has all that begin with `prefix` bits (64
    unless configured). Addresses of one link, and of this machine, are told apart.

    >>> household("192.0.2.1", 64), household("2001:db8::1:2:3:4", 64), household("::1", 64), household("here", 64)
    ('192.0.2.1', '2001:db8::/64', '::1', 'here')
    """
    found = read_address(text)
    if (
        isinstance(found, IPv6Address)
        and prefix < found.max_prefixlen
        and not (found.is_loopback or found.is_link_local)
    ):
        return str(IPv6Network((found, prefix), strict=False))
    return text if found is None else str(found)
