"""The loops over put lines and points in compiled form, where a C compiler was there when the package was installed.

`HAS` says whether they are. Everything works without them, in Python and numpy: the same verdicts and points, slower.
"""

import os

try:
    from tsd.ingest import _rows
except ImportError:  # no compiler when it was installed
    HAS = False
else:
    HAS = not os.environ.get("TSD_PURE")  # to compare the two
    Points = _rows.Points
    encode = _rows.encode
    Texts = _rows.Texts
    KnownNames = _rows.KnownNames
    order = _rows.order
    picked = _rows.picked
