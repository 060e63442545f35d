"""An in-memory connection: two bounded directions that can be cut at any byte or reset."""

import trio


class ByteChannel:
    """One direction. A writer waits while `limit` bytes are unread."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._data = bytearray()
        self._ended = False
        self._broken = False
        self._changed = trio.Event()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def send(self, data: bytes | bytearray | memoryview) -> None:
        """Write all data. Raise BrokenResourceError if the reader is gone."""
        left = bytes(data)
        await trio.lowlevel.checkpoint()
        while left:
            if self._broken or self._ended:
                raise trio.BrokenResourceError("the reader is gone")
            room = max(self._limit - len(self._data), 0)
            if room:
                self._data += left[:room]
                left = left[room:]
                self._notify()
            else:
                await self._changed.wait()

    async def receive(self, most: int) -> bytes:
        """Return some bytes, or none at the end."""
        await trio.lowlevel.checkpoint()
        while not self._data and not self._ended and not self._broken:
            await self._changed.wait()
        if self._broken:
            raise trio.BrokenResourceError("reset")
        data = bytes(self._data[:most])
        del self._data[:most]
        self._notify()
        return data

    def end(self) -> None:
        """Send the end of the stream."""
        self._ended = True
        self._notify()

    def reset(self) -> None:
        """Discard unread bytes and break the direction."""
        self._broken = True
        self._data.clear()
        self._notify()


class StreamEnd(trio.abc.Stream):
    """One end of a connection."""

    def __init__(self, sends: ByteChannel, receives: ByteChannel) -> None:
        self._sends = sends
        self._receives = receives

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._sends.send(data)

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return await self._receives.receive(max_bytes or 1 << 16)

    def send_eof(self) -> None:
        """End writing; replies can still be read."""
        self._sends.end()

    def reset(self) -> None:
        """Reset the connection: unread bytes are lost in both directions."""
        self._sends.reset()
        self._receives.reset()

    def close(self) -> None:
        """Close: the other end can read what was sent, and cannot send."""
        self._sends.end()
        self._receives.reset()

    def shut(self) -> None:
        """Read what has arrived, and no more."""
        self._receives.end()

    async def aclose(self) -> None:
        self.close()
        await trio.lowlevel.checkpoint()


def stream_pair(to_server: int = 1 << 16, to_client: int = 1 << 16) -> tuple[StreamEnd, StreamEnd]:
    """Return the client's and the server's end, with bounds in bytes."""
    there, back = ByteChannel(to_server), ByteChannel(to_client)
    return StreamEnd(there, back), StreamEnd(back, there)
