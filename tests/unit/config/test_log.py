"""The log: bounded in what it writes, whoever writes it."""

import errno
import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import structlog
import trio

from tsd import log

Logged = Callable[[], list[dict[str, object]]]


class Clock:
    """Seconds, as the test says."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def configured() -> Iterator[Clock]:
    """The clock of a log in JSON, for the time of a test. Not a fixture: standard error is another one in a test."""
    handlers = list(logging.getLogger().handlers)
    clock = Clock()
    log.configure("info", "json", clock)
    try:
        yield clock
    finally:
        structlog.reset_defaults()
        logging.getLogger().handlers = handlers


@pytest.fixture
def logged(capsys: pytest.CaptureFixture[str]) -> Logged:
    """What was logged since it was asked last."""
    return lambda: [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_events_of_one_wording_beyond_the_burst_are_counted_instead(logged: Logged) -> None:
    ours = structlog.get_logger("test")
    with configured() as clock:
        for number in range(100):
            ours.warning("again", number=number)
            ours.info("and again")
        assert len(logged()) == 2 * log.BURST
        clock.now += log.PERIOD_S
        ours.warning("again", number=100)
        (event,) = logged()
    assert (event["event"], event["number"], event["left_out"]) == ("again", 100, 100 - log.BURST)


def test_a_terminal_gets_no_commands_of_strangers(capsys: pytest.CaptureFixture[str]) -> None:
    """Not from the values of an event, nor from what it is called: both may hold what somebody sent."""
    with configured():
        log.configure("info", "console", lambda: 0.0)
        structlog.get_logger("test").warning("got \x1b[2Jthat", name="\x1b]0;mine\x07", path="/\x9b2J", line="a\nb")
        said = capsys.readouterr().err
    assert all(letter.isprintable() or letter == "\n" for letter in said)
    assert said.count("\n") == 1
    assert "\\x1b[2Jthat" in said
    assert "name=\\x1b]0;mine\\x07" in said


@pytest.mark.parametrize("form", ["console", "json", "journald"])
def test_a_trace_does_not_tell_what_was_in_hand(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A request, with the token of who sent it, is in the hands of all that work on it."""

    def fail(header: str) -> None:
        raise ValueError(f"no \x1b[2Jgood: {len(header)}")

    with configured():
        log.configure("info", form, lambda: 0.0)
        try:
            fail("Bearer " + "secret")
        except ValueError:
            structlog.get_logger("test").exception("a request failed")
        said = capsys.readouterr().err
    assert "ValueError: no " in said
    assert "Bearer secret" not in said
    assert form == "journald" or "\x1b" not in said


def test_libraries_speak_in_our_form_and_under_our_limits(logged: Logged) -> None:
    theirs = logging.getLogger("some.library")
    with configured():
        theirs.info("nobody wants to know")
        for number in range(100):
            theirs.warning("attempt %d failed", number)
    events = logged()
    assert len(events) == log.BURST
    assert [events[1][key] for key in ("event", "library", "level")] == ["attempt 1 failed", "some.library", "warning"]


async def test_a_port_that_cannot_accept_says_so_without_a_traceback(logged: Logged) -> None:
    """trio told each of its attempts to standard error with 20 lines of traceback, ten times a second."""

    class Exhausted(trio.abc.Listener[trio.abc.Stream]):
        turns = 0

        async def accept(self) -> trio.abc.Stream:
            self.turns += 1
            if self.turns > 1:
                await trio.sleep_forever()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        async def aclose(self) -> None:
            await trio.lowlevel.checkpoint()

    port = Exhausted()
    with configured():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, trio.aclose_forcefully, [port])
            while port.turns < 2:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
    (event,) = logged()
    assert str(event["event"]).startswith("accept returned EMFILE")
    assert (event["level"], event["library"]) == ("error", "trio.serve_listeners")
    assert event["because"] == "OSError(24, 'Too many open files')"
    assert "exception" not in event
