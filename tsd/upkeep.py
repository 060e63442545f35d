"""What goes on beside the serving of agents: an error in it that nobody foresaw does not end that."""

from collections.abc import Awaitable, Callable

import structlog
import trio

log = structlog.get_logger(__name__)

Task = Callable[[], Awaitable[None]]
LONGEST_PAUSE_S = 60.0


class Upkeep:
    """Tasks of a daemon that it can do without for a while."""

    def __init__(self) -> None:
        self.failures = 0  # errors of ours

    def lasting(self, name: str, task: Task) -> Task:
        """A task that begins anew after an error, a little later each time."""

        async def last() -> None:
            pause_s = 1.0
            while True:
                try:
                    await task()
                except Exception:  # of this task alone: agents are served, and the journal is written, without it
                    self.failures += 1
                    log.exception("a task met an error of ours, and begins anew", task=name, in_s=pause_s)
                else:
                    return
                await trio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

        return last
