"""A `tsd serve` process for benchmarks."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import trio

from bench.process_usage import Usage, usage
from bench.telnet import Telnet
from tsd.config.loader import Given
from tsd.config.settings import Config
from tsd.daemon.settings import control_path, read_config
from tsd.store.remote import ControlClient

# One address sends the new names of a whole fleet.
FLEET = {"tsd.quota.new_names_pace": "0"}
START_S = 60
STORED_S = 600


class Daemon:
    """A running daemon."""

    def __init__(self, process: subprocess.Popen[bytes], config: Config, port: int) -> None:
        self._process = process
        self.config = config
        self.port = port

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        """Stop it cleanly."""
        self._process.terminate()
        self._process.wait()

    def usage(self) -> Usage:
        """Return its resource usage so far."""
        return usage(self.pid)

    def stats(self) -> dict[str, int]:
        """Return the reply of `stats` by name and own tag, without the prefix."""
        with Telnet(self.port) as telnet:
            return telnet.stats()

    def flush(self) -> None:
        """Write the open window now instead of at the end of the window, as `tsd scan` does."""

        assert self._call("flush")

    def forget(self) -> None:
        """Drop its caches of names and hours."""
        self._call("drop_caches")

    def _call(self, verb: str) -> object:
        """Return the answer of its control socket."""

        async def call() -> object:
            caller = await ControlClient.connect(control_path(self.config))
            try:
                return await caller.call(verb)
            finally:
                await caller.aclose()

        return trio.run(call)

    def await_stored(self, lines: int) -> float:
        """Return once this many lines are in the store: the time by the monotonic clock."""
        deadline = time.monotonic() + STORED_S
        with Telnet(self.port) as telnet:
            while telnet.stats()["ledger.stored"] < lines:
                assert time.monotonic() < deadline, telnet.stats()
        return time.monotonic()


@contextmanager
def serving(folder: Path, settings: Mapping[str, str], *, plain: bool = False) -> Iterator[Daemon]:
    """Run a daemon with its state in `folder`, and stop it cleanly; `plain`: without compiled loops. It is killed
    with the benchmark."""
    given = {"tsd.network.port": "0", "tsd.storage.path": str(folder), "tsd.log.format": "json", **FLEET, **settings}
    config, _ = read_config(Given("benchmark", key, value) for key, value in given.items())
    words = [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "daemon.log"
    with log.open("wb") as stream:
        python = [sys.executable, "-m"]
        process = subprocess.Popen(
            [*python, "bench.tied", *python, "tsd", "serve", *words], stderr=stream, env=_environment(plain)
        )
    try:
        yield Daemon(process, config, await_port(process, log))
    finally:
        process.terminate()
        process.wait()


def _environment(plain: bool) -> dict[str, str]:
    others = {name: value for name, value in os.environ.items() if name != "TSD_PURE"}
    return others | ({"TSD_PURE": "1"} if plain else {})


def tsd_command(settings: Mapping[str, str], *words: str) -> list[str]:
    """Return the words of a command of tsd with settings."""
    named = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return [sys.executable, "-m", "tsd", *words, *named]


def run_tsd(settings: Mapping[str, str], *words: str) -> str:
    """Run a command of tsd with settings, and return its output."""
    return subprocess.run(tsd_command(settings, *words), check=True, stdout=subprocess.PIPE, text=True).stdout


def await_port(process: subprocess.Popen[bytes], log: Path) -> int:
    """Return the port once the daemon serves. `log` has its standard error, as JSON."""
    deadline = time.monotonic() + START_S
    while True:
        text = log.read_text()
        for line in text[: text.rfind("\n") + 1].splitlines():
            event = json.loads(line) if line.startswith("{") else {}
            if event.get("event") == "daemon.ready":
                return int(event["port"])
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"the daemon did not start:\n{text}")
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
