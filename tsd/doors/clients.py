"""What each client has done: counted by address, for those who want to know who sends what."""


class Client:
    """The account of one address: of all its connections."""

    __slots__ = ("address", "connections", "connections_total")

    def __init__(self, address: str) -> None:
        self.address = address
        self.connections = 0  # open ones
        self.connections_total = 0


class Clients:
    """All accounts."""

    def __init__(self) -> None:
        self._by_address: dict[str, Client] = {}

    def of(self, address: str) -> Client:
        """The account of an address; a new one where there is none."""
        client = self._by_address.get(address)
        if client is None:
            client = self._by_address[address] = Client(address)
        return client
