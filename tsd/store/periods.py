"""Common times for periodic work: one wake-up of an idle daemon for all that is due, instead of one for each task."""

import trio


def next_time(now: float, period_s: float) -> float:
    """Return the next multiple of a period, by trio's clock.

    >>> next_time(19.5, 10.0), next_time(20.0, 10.0)
    (20.0, 30.0)
    """
    found = (now // period_s + 1) * period_s
    return found if found > now else found + period_s  # rounded down to `now`


async def sleep_until_next(period_s: float) -> None:
    """Sleep until the next multiple of a period: at most one period, and less the first time."""
    await trio.sleep_until(next_time(trio.current_time(), period_s))
