"""Telnet before somebody has shown who it is: every line is a try, as OpenTSDB's authentication has it (wire.md §8)."""

from collections.abc import Awaitable, Callable

import trio

from tsd.access.doorkeeper import Doorkeeper
from tsd.access.guesses import TooManyTries
from tsd.doors.visitor import Visitor

SUCCESS, FAILURE = b"AUTH_SUCCESS\r\n", b"AUTH_FAIL\r\n"
MOST_TRIES = 5  # lines; then the connection ends
PATIENCE_S = 30  # from the first byte


async def try_line(line: bytes, doorkeeper: Doorkeeper, visitor: Visitor) -> bool:
    """Whether a line, without its end, shows who somebody is; then the visitor is that one. Raises TooManyTries."""
    words = line.decode("utf-8", "replace").split()
    if words[:1] != ["auth"]:
        return False
    badge = await doorkeeper.by_words(words[1:], visitor.address)
    if badge is None:
        return False
    visitor.show(badge)
    return True


async def sign_in(
    stream: trio.abc.Stream,
    first: bytes,
    receive: Callable[[], Awaitable[bytes]],
    doorkeeper: Doorkeeper,
    visitor: Visitor,
    max_line: int,
) -> bytes | None:
    """What came behind the line that showed who it is; None where none did, and the connection is over."""
    tries, unread = 0, first
    with trio.move_on_after(PATIENCE_S):
        while tries < MOST_TRIES:
            line, end, rest = unread.partition(b"\n")
            if not end:
                visitor.holds(len(unread))
                if len(unread) > max_line or not (more := await receive()):
                    return None
                unread += more
                continue
            unread = rest
            tries += 1
            try:
                shown = await try_line(line, doorkeeper, visitor)
            except TooManyTries:
                break
            await stream.send_all(SUCCESS if shown else FAILURE)
            if shown:
                return unread
        else:
            return None
        await stream.send_all(FAILURE)
    return None
