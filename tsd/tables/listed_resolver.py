"""Keys of series in layouts that store names as they are: what their `SeriesResolver`s share."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence

from tsd.codec.names import Kind
from tsd.errors import UNKNOWN_NAME, BadLine
from tsd.tables.name_list import forget_oldest
from tsd.tables.writing import NO_KEY, Admission, ResolvedSeries, SeriesKey, SeriesKeys, SeriesText

MOST_KNOWN = 100_000  # metrics


class ListedResolver(ABC):
    """Series texts → keys. A metric is new if the layout does not list it."""

    composer = None

    def __init__(self, is_listed: Callable[[str], Awaitable[bool]], *, creates_metrics: bool) -> None:
        """`is_listed` reads whether a metric exists. Raise StoreError."""
        self._is_listed = is_listed
        self._creates_metrics = creates_metrics
        self._known: dict[str, None] = {}  # metrics that are listed, or admitted; the oldest first

    @abstractmethod
    def key_of(self, text: SeriesText) -> SeriesKey:
        """Return the key of a series. Raise BadLine."""

    @abstractmethod
    async def list_series(self, keys: Sequence[SeriesKey]) -> None:
        """List what the layout lists of series before their first points are written. Raise StoreError."""

    async def resolve(self, series: Sequence[SeriesText], admission: Admission | None = None) -> ResolvedSeries:
        """Resolve well-formed series, see `SeriesResolver`."""
        keys: list[SeriesKey] = []
        refused: dict[int, BadLine] = {}
        for at, text in enumerate(series):
            try:
                key = self.key_of(text)
                await self._admit(text.metric, admission)
            except BadLine as error:
                key, refused[at] = NO_KEY, error
            keys.append(key)
        await self.list_series([key for key in keys if key != NO_KEY])
        return ResolvedSeries(SeriesKeys.of(keys), refused)

    async def assign(self, series: SeriesText) -> SeriesKey:
        """Return the key of a series. Raise BadLine."""
        return self.key_of(series)

    async def _admit(self, metric: bytes, admission: Admission | None) -> None:
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
        """Return whether a metric was resolved. It is listed when its first points are written."""
        return metric in self._known

    def forget(self) -> None:
        """Forget which metrics exist."""
        self._known.clear()
