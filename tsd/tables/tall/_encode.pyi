from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tsd.store import Put
from tsd.tables.tall.encode import ColumnPlace

def encode(
    places: list[ColumnPlace],
    numbers: NDArray[np.int64],
    rows: NDArray[np.int64],
    times: NDArray[np.int64],
    bits: NDArray[np.int64],
    floats: NDArray[np.uint8],
    day_text: Callable[[int], bytes],
    put_type: type[Put],
) -> list[Put]: ...
