"""A bounded cache of names or UIDs."""

from collections.abc import Iterator

from tsd.codec.bytemap import ByteMap


class NameCache:
    """A bounded mapping. A full one drops the older half of its entries."""

    def __init__(self, bound: int) -> None:
        self.map = ByteMap()
        self._bound = bound
        self.overflows = 0  # times it was full
        self.get = self.map.get
        self.clear = self.map.clear

    def __len__(self) -> int:
        return len(self.map)

    def put(self, key: bytes, value: bytes) -> None:
        """Set the value of a key."""
        if len(self.map) >= self._bound and self.map.get(key) is None:
            self.overflows += 1
            self.map.drop_half()
        self.map.put(key, value)

    def chunks(self, size: int) -> Iterator[dict[bytes, bytes]]:
        """Yield the entries, `size` at a time. Stop early if entries are dropped meanwhile."""
        at, rebuilt = 0, self.map.rebuilt
        while self.map.rebuilt == rebuilt:
            chunk, at = self.map.items(at, size)
            if not chunk:
                return
            yield dict(chunk)
