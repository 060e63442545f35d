"""How late the event loop is: whoever wakes up by the clock learns what everybody waits for a turn."""

import trio

from tsd.latency import Latency

EVERY_S = 0.5


class LoopLag:
    """A task that sleeps, and by how much it overslept."""

    def __init__(self) -> None:
        self.late = Latency()

    async def run(self) -> None:
        """Measure for ever."""
        while True:
            due = trio.current_time() + EVERY_S
            await trio.sleep_until(due)
            self.late.note(trio.current_time() - due)
