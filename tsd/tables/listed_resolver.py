"""Metrics of layouts that store names as they are: one is new if the layout does not list it."""

from collections.abc import Awaitable, Callable

from tsd.codec.names import Kind
from tsd.errors import UNKNOWN_NAME, BadLine
from tsd.tables.name_list import forget_oldest
from tsd.tables.writing import Admission

MOST_KNOWN = 100_000  # metrics


class ListedMetrics:
    """The metrics of a layout's tables."""

    def __init__(self, is_listed: Callable[[str], Awaitable[bool]], *, creates_metrics: bool) -> None:
        """`is_listed` reads whether a metric exists. Raise StoreError."""
        self._is_listed = is_listed
        self._creates_metrics = creates_metrics
        self._known: dict[str, None] = {}  # that are listed, or admitted; the oldest first

    async def admit(self, metric: bytes, admission: Admission | None) -> None:
        """Raise BadLine unless a metric exists, or may be new. Raise StoreError."""
        name = metric.decode("latin-1")
        if name in self._known:
            return
        if not (self._creates_metrics and admission is None) and not await self._is_listed(name):
            if not self._creates_metrics:
                raise BadLine(UNKNOWN_NAME, f"unknown metric: No such name for '{Kind.METRIC.value}': '{name}'")
            error = admission.admit_name(Kind.METRIC, metric) if admission is not None else None
            if error is not None:
                raise error
        self._known[name] = None
        forget_oldest(self._known, MOST_KNOWN)

    def knows(self, metric: str) -> bool:
        """Return whether a metric was admitted. It is listed when its first points are written."""
        return metric in self._known

    def forget(self) -> None:
        """Forget which metrics exist."""
        self._known.clear()
