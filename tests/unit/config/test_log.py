"""The log: its rate limit, records of libraries, control characters, and its forms."""

import errno
import json
import logging
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import structlog
import trio

from tsd.config import log

Logged = Callable[[], list[dict[str, object]]]


class Clock:
    """A clock that the test sets, in seconds."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def configured() -> Iterator[Clock]:
    """Log in JSON within the block; yields the log's clock. Not a fixture: in a test, standard error is another one."""
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
    """Return the events since the last call."""
    return lambda: [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_events_beyond_the_burst_are_counted(logged: Logged) -> None:
    own = structlog.get_logger("test")
    with configured() as clock:
        for number in range(100):
            own.warning("again", number=number)
            own.info("other")
        assert len(logged()) == 2 * log.BURST
        clock.now += log.PERIOD_S
        own.warning("again", number=100)
        (event,) = logged()
    assert (event["event"], event["number"], event["dropped_events"]) == ("again", 100, 100 - log.BURST)


def test_control_characters_never_reach_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither names nor values of events: both may hold what a client sent."""
    with configured():
        log.configure("info", "console", lambda: 0.0)
        structlog.get_logger("test").warning("got \x1b[2Jthat", name="\x1b]0;mine\x07", path="/\x9b2J", line="a\nb")
        output = capsys.readouterr().err
    assert all(letter.isprintable() or letter == "\n" for letter in output)
    assert output.count("\n") == 1
    assert "\\x1b[2Jthat" in output
    assert "name=\\x1b]0;mine\\x07" in output


@pytest.mark.parametrize("form", ["console", "json", "journald"])
def test_traceback_has_no_local_variables(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Frames hold requests, and these hold tokens."""

    def fail(header: str) -> None:
        raise ValueError(f"no \x1b[2Jgood: {len(header)}")

    with configured():
        log.configure("info", form, lambda: 0.0)
        try:
            fail("Bearer " + "secret")
        except ValueError:
            structlog.get_logger("test").exception("a request failed")
        output = capsys.readouterr().err
    assert "ValueError: no " in output
    assert "Bearer secret" not in output
    assert form == "journald" or "\x1b" not in output


@pytest.mark.parametrize("formats", [True, False])
def test_library_records_are_events_with_a_limit(logged: Logged, formats: bool) -> None:
    library = logging.getLogger("some.library")
    with configured():
        library.info("below the level")
        for number in range(100):
            text, args = (f"attempt {number} failed", ()) if formats else ("attempt %d failed", (number,))
            library.warning(text, *args)
    events = logged()
    assert len(events) == log.BURST
    assert [events[1][key] for key in ("event", "message", "library", "level")] == [
        "library.message", "attempt 1 failed", "some.library", "warning",
    ]  # fmt: skip


async def test_failed_accept_is_logged_without_traceback(logged: Logged) -> None:
    """trio logged each attempt with 20 lines of traceback, ten times a second."""

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
    assert str(event["message"]).startswith("accept returned EMFILE")
    assert (event["level"], event["library"]) == ("error", "trio.serve_listeners")
    assert event["error"] == "OSError(24, 'Too many open files')"
    assert "exception" not in event


@pytest.fixture
def restored() -> Iterator[None]:
    handlers = list(logging.getLogger().handlers)
    yield
    structlog.reset_defaults()
    logging.getLogger().handlers = handlers


@pytest.mark.usefixtures("restored")
def test_journald_lines_have_priorities(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("debug", "journald", lambda: 0.0)
    own = structlog.get_logger("test")
    own.debug("one")
    own.warning("two", name="a\n<0>b", count=2)
    own.error("three\nfour")
    try:
        raise ValueError("five\nsix")
    except ValueError:
        own.exception("seven")
    lines = capsys.readouterr().err.splitlines()
    assert lines[:4] == ["<7>one", "<4>two name='a\\n<0>b' count=2", "<3>three", "<3>four"]
    assert lines[4] == "<3>seven"
    assert lines[-2:] == ["<3>ValueError: five", "<3>six"]
    assert all(line.startswith("<3>") for line in lines[4:])


@pytest.mark.usefixtures("restored")
def test_long_line_is_cut_for_journald(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("info", "journald", lambda: 0.0)
    structlog.get_logger("test").info("long", text="x" * 100_000)
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("<6>long text='xxx")
    assert line.endswith(f"… ({len('long text=') + 100_002 - log.LINE_CHARS} more)")


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("own", [True, False])
def test_auto_form_is_journald_only_if_stderr_is_the_journal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own: bool
) -> None:
    """A service's shell may have redirected standard error; the variable stays."""
    with (tmp_path / "err").open("w+") as file:
        status = os.fstat(file.fileno())
        monkeypatch.setattr(sys, "stderr", file)
        monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino + (not own)}")
        log.configure("info", "auto", lambda: 0.0)
        structlog.get_logger("test").info("one")
        file.seek(0)
        assert file.read().startswith("<6>") == own


@pytest.mark.usefixtures("restored")
def test_closed_standard_error_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w", buffering=1) as gone:
        monkeypatch.setattr(sys, "stderr", gone)
        log.configure("info", "journald", lambda: 0.0)
        structlog.get_logger("test").info("one")
        structlog.get_logger("test").exception("two")
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), writing)  # its buffer is flushed when it is closed


@pytest.mark.usefixtures("restored")
def test_lines_are_dropped_and_counted_while_a_pipe_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: the daemon hung once the pipe was full, and ignored SIGTERM."""
    reading, writing = os.pipe()
    with os.fdopen(reading) as pipe, os.fdopen(writing, "w", buffering=1) as error:
        monkeypatch.setattr(sys, "stderr", error)
        log.configure("info", "json", lambda: 0.0)
        own = structlog.get_logger("test")
        for number in range(200):
            own.info("long", _limit_key=None, text="x" * 4000, number=number)
        os.set_blocking(reading, False)
        first = os.read(reading, 1 << 20).decode()
        own.info("last", _limit_key=None)
        events = [json.loads(line) for line in (first + pipe.read()).splitlines() if line.endswith("}")]
    *written, dropped, last = events
    assert [event["number"] for event in written] == list(range(len(written)))
    assert (dropped["event"], dropped["lines"], last["event"]) == ("log.lines_dropped", 200 - len(written), "last")


@pytest.mark.usefixtures("restored")
def test_long_lines_of_threads_are_not_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: lines were written in parts, and those of two threads ended up in each other."""
    reading, writing = os.pipe()
    received: list[str] = []
    with os.fdopen(reading) as pipe, os.fdopen(writing, "w", buffering=1) as error:
        monkeypatch.setattr(sys, "stderr", error)
        log.configure("info", "json", lambda: 0.0)

        def write(number: int) -> None:
            for _ in range(200):
                structlog.get_logger("test").info("long", _limit_key=None, text=str(number) * 6000)

        reader = threading.Thread(target=lambda: received.extend(pipe))
        writers = [threading.Thread(target=write, args=(number,)) for number in range(3)]
        for thread in (reader, *writers):
            thread.start()
        for thread in writers:
            thread.join()
        error.close()
        reader.join()
    assert Counter(json.loads(line)["text"][::5999] for line in received) == {
        f"{number}" * 2: 200 for number in range(3)
    }
