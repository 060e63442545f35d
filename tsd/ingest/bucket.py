"""A token bucket: how much may come at a steady pace, with some of it at once."""


class Bucket:
    """Holds tokens that come at `rate` a second, at most `burst` of them. Times are seconds of a clock that only moves
    forward.

    >>> bucket = Bucket(10, 20, now_s=0)
    >>> bucket.spend(50, now_s=0)
    >>> bucket.debt_s(now_s=1)
    2.0
    >>> bucket.take(now_s=1), bucket.take(now_s=4)
    (False, True)
    """

    __slots__ = ("_burst", "_filled_s", "_rate", "_tokens")

    def __init__(self, rate: float, burst: float, *, now_s: float) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = burst
        self._filled_s = now_s

    def _fill(self, now_s: float) -> None:
        self._tokens = min(self._burst, self._tokens + (now_s - self._filled_s) * self._rate)
        self._filled_s = now_s

    def spend(self, count: float, *, now_s: float) -> None:
        """Take tokens that are there, or will be: what was done cannot be undone."""
        self._fill(now_s)
        self._tokens -= count

    def debt_s(self, *, now_s: float) -> float:
        """How long until what was spent has come; 0 where it is there."""
        self._fill(now_s)
        return max(0.0, -self._tokens / self._rate)

    def whole(self, *, now_s: float) -> int:
        """How many whole tokens are there."""
        self._fill(now_s)
        return max(0, int(self._tokens))

    def is_full(self, *, now_s: float) -> bool:
        """Whether all that was spent has come back."""
        self._fill(now_s)
        return self._tokens == self._burst

    def has(self, *, now_s: float) -> bool:
        """Whether a whole token is there."""
        return self.whole(now_s=now_s) > 0

    def take(self, *, now_s: float) -> bool:
        """Take one token, if it is there."""
        if not self.has(now_s=now_s):
            return False
        self._tokens -= 1
        return True
