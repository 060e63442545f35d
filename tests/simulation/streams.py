"""A connection in memory: two directions, each with a bound, that can be cut at any byte or reset."""

import trio


class Pipe:
    """Bytes one way. A writer waits while `limit` bytes are unread."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._data = bytearray()
        self._ended = False
        self._broken = False
        self._changed = trio.Event()

    def _note(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def send(self, data: bytes | bytearray | memoryview) -> None:
        """Raises BrokenResourceError where nobody will read."""
        left = bytes(data)
        await trio.lowlevel.checkpoint()
        while left:
            if self._broken or self._ended:
                raise trio.BrokenResourceError("nobody reads")
            room = max(self._limit - len(self._data), 0)
            if room:
                self._data += left[:room]
                left = left[room:]
                self._note()
            else:
                await self._changed.wait()

    async def receive(self, most: int) -> bytes:
        """Some bytes, or none at the end."""
        await trio.lowlevel.checkpoint()
        while not self._data and not self._ended and not self._broken:
            await self._changed.wait()
        if self._broken:
            raise trio.BrokenResourceError("reset")
        data = bytes(self._data[:most])
        del self._data[:most]
        self._note()
        return data

    def end(self) -> None:
        """No more will be sent."""
        self._ended = True
        self._note()

    def break_off(self) -> None:
        """What is unread is lost."""
        self._broken = True
        self._data.clear()
        self._note()


class End(trio.abc.Stream):
    """One end of a connection."""

    def __init__(self, sends: Pipe, receives: Pipe) -> None:
        self._sends = sends
        self._receives = receives

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._sends.send(data)

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return await self._receives.receive(max_bytes or 1 << 16)

    def send_eof(self) -> None:
        """Say that no more will be sent; replies may still come."""
        self._sends.end()

    def reset(self) -> None:
        """Hang up at once: what is on its way is lost, either way."""
        self._sends.break_off()
        self._receives.break_off()

    def hang_up(self) -> None:
        """Close: the other end reads what was sent, and can send nothing."""
        self._sends.end()
        self._receives.break_off()

    def shut(self) -> None:
        """Read what has come, and no more."""
        self._receives.end()

    async def aclose(self) -> None:
        self.hang_up()
        await trio.lowlevel.checkpoint()


def connection(to_server: int = 1 << 16, to_client: int = 1 << 16) -> tuple[End, End]:
    """The client's end and the server's, with bounds in bytes."""
    there, back = Pipe(to_server), Pipe(to_client)
    return End(there, back), End(back, there)
