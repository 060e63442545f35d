"""A full run skips no test."""

import pytest

from tests.peers.needs import fail_unexpected_skip


def skipped() -> pytest.TestReport:
    return pytest.TestReport(
        "test", ("test.py", 1, "test"), {}, "skipped", ("test.py", 1, "Skipped: not root"), "setup"
    )


@pytest.mark.parametrize(
    ("variables", "outcome"),
    [
        ({}, "skipped"),
        ({"TSD_TEST_FULL": "1"}, "failed"),
        ({"CI": "true"}, "failed"),
        ({"CI": "1", "TSD_PURE": "1"}, "skipped"),
    ],
)
def test_skip_fails_in_a_full_run(variables: dict[str, str], outcome: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TSD_TEST_FULL", "CI", "TSD_PURE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    report = skipped()
    fail_unexpected_skip(report)
    assert report.outcome == outcome
    assert "not root" in str(report.longrepr)


def test_expected_failure_is_no_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TSD_TEST_FULL", "1")
    report = skipped()
    report.wasxfail = "known"
    fail_unexpected_skip(report)
    assert report.outcome == "skipped"
