"""Errors of cassandra-driver as StoreErrors, with their causes."""

import pytest

from tsd.errors import StoreBusy, StoreDown, StoreError

pytest.importorskip("cassandra")
from cassandra import OperationTimedOut, ReadFailure, Unavailable
from cassandra.cluster import NoHostAvailable
from cassandra.protocol import OverloadedErrorMessage, UnavailableErrorMessage

from tsd.store.cassandra.driver import translated
from tsd.store.cassandra.session import ReadFailed, TooManyTombstones

OVERLOADED = OverloadedErrorMessage(0x1001, "too many requests", {})
UNAVAILABLE = UnavailableErrorMessage(0x1000, "not enough replicas", {"required_replicas": 2, "alive_replicas": 1})


@pytest.mark.parametrize(
    ("error", "kind", "word"),
    [
        (Unavailable("not enough replicas", required_replicas=2, alive_replicas=1), StoreDown, "replicas"),
        (OVERLOADED, StoreBusy, "overloaded"),
        (NoHostAvailable("all failed", {"10.0.0.1": OVERLOADED, "10.0.0.2": OVERLOADED}), StoreBusy, "10.0.0.2"),
        (NoHostAvailable("all failed", {"10.0.0.1": OVERLOADED, "10.0.0.2": OSError("gone")}), StoreDown, "gone"),
        (NoHostAvailable("all failed", {"10.0.0.1": UNAVAILABLE, "10.0.0.2": OSError("gone")}), StoreDown, "too few"),
        (NoHostAvailable("all failed", ["10.0.0.1"]), StoreDown, "10.0.0.1"),
        (NoHostAvailable("all failed", {}), StoreDown, "no node answers"),
        (OperationTimedOut(), StoreDown, "no answer in time"),
        (ReadFailure("READ_TOO_MANY_TOMBSTONES"), TooManyTombstones, "TOMBSTONES"),
        (ReadFailure("UNKNOWN"), ReadFailed, "UNKNOWN"),
    ],
)
def test_error_says_what_to_do(error: Exception, kind: type[StoreError], word: str) -> None:
    found = translated(error)
    assert type(found) is kind
    assert word in str(found)
