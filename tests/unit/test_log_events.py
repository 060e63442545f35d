"""docs/log-events.md lists the log events of the code."""

import pytest

from scripts.log_events import NAME, PAGE, events, page


@pytest.mark.slow
def test_log_events_page_is_up_to_date() -> None:
    assert PAGE.read_text("utf-8") == page(), "run: python -m scripts.log_events"


def test_log_events_have_names_and_not_sentences() -> None:
    assert [name for name in events() if not NAME.fullmatch(name)] == []


def test_log_events_include_both_branches_of_a_choice() -> None:
    assert events()["journal.segment_damaged"].levels == {"error", "warning"}
    assert events()["access.open_port"].fields == {"next_step"}
