"""The loop over put lines in compiled form, where a C compiler was there when the package was installed.

`HAS` says whether it is. Everything works without it, in Python and numpy: the same verdicts and points, slower.
"""

import os

try:
    from tsd.ingest import _rows
except ImportError:  # no compiler when it was installed
    HAS = False
else:
    HAS = not os.environ.get("TSD_PURE")  # to compare the two
    Points = _rows.Points
    Texts = _rows.Texts
