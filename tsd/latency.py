"""How long things took, counted in ranges: what percentiles are made of, for the price of a bisection each."""

from bisect import bisect_left

# Seconds, each range with its upper bound. A sync of a disk takes 1 to 20 ms, a call of HBase 1 to 100, a stalled one
# until its time is over.
BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Latency:
    """The times of one kind of thing since the start.

    >>> took = Latency()
    >>> took.note(0.001), took.note(0.3), took.note(99)
    (None, None, None)
    >>> took.count, took.total_s, took.counts[0], took.counts[-1]
    (3, 99.301, 1, 1)
    """

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)  # of each range; the last one has no bound
        self.total_s = 0.0

    def note(self, took_s: float) -> None:
        """One more."""
        self.counts[bisect_left(BOUNDS_S, took_s)] += 1
        self.total_s += took_s

    @property
    def count(self) -> int:
        """How many."""
        return sum(self.counts)
