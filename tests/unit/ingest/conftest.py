"""A writer that does not wait long before it tries again."""

import pytest


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tsd.ingest.writer.FIRST_RETRY_S", 0.001)
    monkeypatch.setattr("tsd.ingest.writer.LAST_RETRY_S", 0.002)
