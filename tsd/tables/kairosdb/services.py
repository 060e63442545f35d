"""KairosDB's table service_index: texts that clients keep by service, service key and key.

A running KairosDB shares the table. Both write with their clock in milliseconds as the timestamp.
"""

from tsd.tables.kairosdb.tables import NEVER, KairosTables

PAGE_KEYS = 1000  # of one request


class KairosServices:
    """The table of one keyspace, see `ServiceMetadata`."""

    def __init__(self, tables: KairosTables) -> None:
        self._tables = tables
        self._statements = tables.statements

    async def get(self, service: str, service_key: str, key: str) -> str | None:
        """Return a stored text, None if there is none. Raise StoreError."""
        await self._tables.spec()
        rows = await self._tables.ask(self._statements.service, (service, service_key, key))
        return str(rows[0][0] or "") if rows else None

    async def put(self, service: str, service_key: str, key: str, value: str) -> None:
        """Store a text. Raise StoreError."""
        await self._tables.spec()
        await self._tables.ask(
            self._statements.put_service, (service, service_key, key, value, NEVER, self._tables.stamps())
        )

    async def delete(self, service: str, service_key: str, key: str) -> None:
        """Delete a text, if there is one. Raise StoreError."""
        await self._tables.spec()
        await self._tables.ask(self._statements.delete_service, (self._tables.stamps(), service, service_key, key))

    async def keys(self, service: str, service_key: str, limit: int) -> list[str]:
        """Return the first keys below a service key, in order of their bytes. Raise StoreError."""
        await self._tables.spec()
        found: list[str] = []
        start = ""
        while len(found) < limit:
            count = min(PAGE_KEYS, limit - len(found))
            rows = await self._tables.ask(self._statements.service_names, (service, service_key, start, count))
            found += [str(key) for (key,) in rows if key is not None]  # a row of null is the static mtime alone
            if len(rows) < count or not found:
                break
            start = found[-1] + "\0"
        return found

    async def service_keys(self, service: str, limit: int) -> list[str]:
        """Return the service keys of a service that have keys, sorted, at most `limit`. Cassandra reads the whole table
        for it. Raise StoreError."""
        await self._tables.spec()
        rows = await self._tables.ask(self._statements.service_keys, (service, limit))
        return sorted(str(service_key) for service_key, key in rows if key is not None)
