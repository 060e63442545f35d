from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from tsd.codec._bytemap import ByteMap
from tsd.tables._composer import KeyComposer

class UidComposer(KeyComposer):
    def __init__(
        self, metrics: ByteMap, tagks: ByteMap, tagvs: ByteMap, salt_width: int, salt_buckets: int
    ) -> None: ...
    def compose_all(self, texts: Sequence[tuple[bytes, bytes]], bounds: NDArray[np.int64]) -> bytes: ...
    def missing(self, texts: Iterable[tuple[bytes, bytes]]) -> tuple[list[bytes], list[bytes], list[bytes]]: ...
