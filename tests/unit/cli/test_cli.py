"""The command `tsd`: its help, its version, its exit statuses and what it imports."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from tsd import cli, revision, version
from tsd.cli import COMMANDS, DEFERRED, LazyGroup, find_command
from tsd.cli.scan import BadRequest, parse_request

PROGRAM = "import sys; from tsd.cli import main; sys.argv = ['tsd', *sys.argv[1:]]; "


def run(*words: str, program: str = "main()") -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", PROGRAM + program, *words], capture_output=True, text=True)


class Ended(NamedTuple):
    """Exit status and output of a command."""

    status: object
    out: str
    err: str


@pytest.fixture
def run_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Run a command in this process, where an error that would print a traceback fails the test."""

    def run_here(*words: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["tsd", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return Ended(ended.value.code, *capsys.readouterr())

    return run_here


@pytest.mark.parametrize("name", COMMANDS)
def test_every_listed_command_exists(name: str) -> None:
    command = find_command(name)
    assert isinstance(command, click.Command)
    assert command.name == name


def test_help_lists_whole_summaries_without_importing_commands() -> None:
    done = run("--help", program="import atexit; atexit.register(lambda: print('trio' in sys.modules)); main()")
    assert done.returncode == 0
    assert all(entry.summary in done.stdout for entry in COMMANDS.values())
    assert done.stdout.endswith("False\n")


@pytest.mark.parametrize("name", ["agent", "cn=agent", "DNS=", ""])
def test_name_that_no_certificate_has_makes_no_account(
    name: str, tmp_path: Path, run_here: Callable[..., Ended]
) -> None:
    """Regression: it ended with a traceback, or made an account without any use."""
    file = tmp_path / "accounts"
    done = run_here("token", "add", "a", "--role", "write", "--certificate", name, "--file", str(file))
    assert (done.status, file.exists()) == (2, False)
    assert "CN=" in done.err


HEAVY = {"trio", "numpy", "cryptography", "tsd.store", "tsd.daemon.wiring", "tsd.ingest.intake"}
FAST = ["version", "check-config", "health", "top --once", "rejected", "send x --port 1", "token list"]


@pytest.mark.slow
@pytest.mark.parametrize("words", FAST)
def test_commands_that_need_no_store_import_no_engine(words: str, tmp_path: Path) -> None:
    (tmp_path / "accounts").touch()
    folder = ["--set", f"tsd.storage.path={tmp_path}", "--set", f"tsd.auth.file={tmp_path / 'accounts'}"]
    report = f"import atexit; atexit.register(lambda: print({HEAVY!r} & set(sys.modules))); main()"
    done = run(*folder, *words.split(), program=report)
    assert done.stdout.endswith("set()\n"), done.stderr


SERVING = {"tsd.server", "tsd.daemon.routes", "tsd.api.query", "cryptography", "prometheus_client", "rich", "structlog"}
RARE = {"tsd.tables.entity.layout", "tsd.store.hbase", "tsd.api.graph.picture"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", ["query 1h-ago sum:sys.cpu", "uid grep metrics .", "fsck --full-scan", "scan 1h-ago sum sys.cpu"]
)
def test_commands_on_local_store_import_no_server(words: str, tmp_path: Path) -> None:
    report = f"import atexit; atexit.register(lambda: print({SERVING | RARE!r} & set(sys.modules))); main()"
    folder = ["--set", f"tsd.storage.path={tmp_path}"]
    run(*folder, "mkmetric", "sys.cpu")
    done = run(*folder, *words.split(), program=report)
    assert done.stdout.endswith("set()\n"), done.stderr


@pytest.mark.slow
def test_daemon_imports_nothing_that_only_terminals_other_engines_and_few_requests_need() -> None:
    needless = {"rich", "pygments", "plotly", "cryptography", "thriftpy2", "cassandra", "google.cloud"}
    needless |= {"prometheus_client", "tsd.query.exp", "tsd.query.gexp", "tsd.query.kairosdb", "tsd.codec.regex"}
    needless |= {"tsd.api.entity", "tsd.api.graph", "tsd.api.heroic", "tsd.api.kairosdb", "tsd.api.page.endpoint"}
    done = run(program=f"\nimport tsd.cli.serve\nprint({needless!r} & set(sys.modules))")
    assert done.stdout == "set()\n", done.stderr


HELPS = """
import click, sys
from tsd.cli import COMMANDS, find_command

def ask(command, words):
    for more in ("--help", "--no-such-option"):
        try:
            tsd.main([*words, more], prog_name="tsd", standalone_mode=False)
        except click.UsageError:
            pass
    print(*words, sorted(HEAVY & set(sys.modules)), file=sys.stderr)
    for name, one in getattr(command, "commands", {}).items():
        ask(one, [*words, name])

for name in COMMANDS:
    ask(find_command(name), [name])
"""


def test_help_and_wrong_options_import_nothing_that_takes_long() -> None:
    heavy = HEAVY | {"rich", "structlog", "asyncio", "multiprocessing", "tsd.tables", "tsd.query"}
    done = run(program=f"\nHEAVY = {heavy!r}\nfrom tsd.cli import tsd\n{HELPS}")
    assert done.returncode == 0, done.stderr
    imported = [line for line in done.stderr.splitlines() if not line.endswith(" []")]
    assert imported == []
    assert "uid fsck []" in done.stderr


def test_forked_commands_find_their_work_imported() -> None:
    """A place that `import_all` leaves out would be imported once for each forked command."""
    text = "".join(file.read_text("utf-8") for file in (Path(cli.__file__).parent / "commands").glob("*.py"))
    places = set(re.findall(r'perform\("tsd\.cli\.([\w.]+):\w+"', text))
    assert "scan" in places
    assert places <= set(DEFERRED)


def commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group) and not isinstance(command, LazyGroup):
        for subcommand in command.commands.values():
            yield from commands(subcommand, f"{name} {subcommand.name}")
    else:
        yield name, command


def test_every_command_that_prints_has_json() -> None:
    found = dict(pair for name in COMMANDS for pair in commands(find_command(name), name))
    lacking = {name for name, command in found.items() if "--json" not in {o for p in command.params for o in p.opts}}
    assert lacking == {"serve", "journal"}  # the log is JSON with tsd.log.format=json, and lines are to be imported
    assert "token list" in found


def test_end_before_start_is_named() -> None:
    with pytest.raises(BadRequest, match="the end 'now' is before the start '200'"):
        parse_request(["200", "sum", "m"], 100_000)
    with pytest.raises(BadRequest, match="the end '100' is before the start '200'"):
        parse_request(["200", "100", "sum", "m"], 300_000)


def test_unknown_function_is_refused() -> None:
    with pytest.raises(BadRequest, match="No such aggregator: foo"):
        parse_request(["200", "foo", "m"], 300_000)


def test_version_option_says_version_and_commit() -> None:
    assert {version(), revision()} <= set(re.split("[ ,\n]+", run("--version").stdout))


WRONG_TIMES = [["scan", time, "sum", "m"] for time in ("0001/01/01", "1" * 5000, f"{'1' * 5000}d-ago")]


@pytest.mark.parametrize(
    "words", [["nothing"], ["--nothing"], ["compact", "--rate", "x"], ["top", "--data", ""], *WRONG_TIMES]
)
def test_wrong_usage_has_status_2(words: list[str], run_here: Callable[..., Ended]) -> None:
    done = run_here(*words)
    assert (done.status, done.out) == (2, "")


def test_wrong_command_names_the_one_that_was_meant() -> None:
    done = run("querry", "--help")
    assert (done.returncode, done.stdout) == (2, "")
    assert "'query'" in done.stderr


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "BaseExceptionGroup('', [KeyboardInterrupt()])"])
def test_interrupted_command_has_status_130(error: str) -> None:
    """Regression: one that was interrupted in a nursery, such as `tsd query`, printed a traceback."""
    raised = "import tsd.cli.send as send\n"
    raised += f"def stop(*_): raise {error}\nsend.socket.create_connection = stop\nmain()"
    done = run("send", "x", program="pass\n" + raised)
    assert done.returncode == 130
    assert "Traceback" not in done.stderr


def test_closed_pipe_has_status_0() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM + "main()", "check-config", "--show"], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL) as process:  # fmt: skip
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait() == 0


@pytest.mark.parametrize("words", [["check-config", "--show"], ["--help"], ["--version"], ["query", "--help"]])
def test_full_disk_has_status_1(words: Sequence[str]) -> None:
    """Regression: a traceback was printed."""
    with open("/dev/full", "wb") as full:
        done = subprocess.run([sys.executable, "-c", PROGRAM + "main()", *words], stdout=full, stderr=subprocess.PIPE)
    wanted = b"tsd: the command ended early: [Errno 28] No space left on device\n"
    assert (done.returncode, done.stderr) == (1, wanted)


def test_closed_output_has_status_1() -> None:
    """Regression: a traceback was printed."""
    command = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-c", PROGRAM + "main()", "check-config", "--show"]
    done = subprocess.run(command, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (1, b"tsd: the command ended early: [Errno 9] Bad file descriptor\n")


def test_no_other_file_takes_the_place_of_a_closed_stream(tmp_path: Path) -> None:
    said = tmp_path / "said"
    program = f"""
import os
try:
    main()
finally:
    with open({str(said)!r}, "w") as file:
        print(*(os.readlink(f"/proc/self/fd/{{number}}") for number in range(3)), file=file)
"""
    command = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", PROGRAM + program, "nothing"]
    assert subprocess.run(command).returncode == 2
    assert said.read_text().split() == ["/dev/null"] * 3


@pytest.mark.parametrize("name", ["tsd.cli", "click", "tsd.config.loader", "tsd.cli.status"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_during_the_imports_ends_a_command_quietly(name: str, number: signal.Signals) -> None:
    """Regression: Ctrl-C ended with a traceback."""
    program = f"""
import os, signal, sys
class Interrupting:
    def find_spec(self, name, *rest):
        if name == {name!r}:
            os.kill(os.getpid(), {int(number)})
sys.meta_path.insert(0, Interrupting())
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv = ["tsd", "check-config"]
from tsd.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True)
    assert done.returncode in (-number, cli.INTERRUPTED if number == signal.SIGINT else -number)
    assert (done.stdout, done.stderr.strip()) == (b"", b"")


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e400", "-1"])
@pytest.mark.parametrize(
    "words", ["compact --rate", "rollup build --pause", "top --interval", "query 1h-ago sum:m --timeout"]
)
def test_number_must_be_finite_and_in_its_range(
    words: str, text: str, tmp_path: Path, run_here: Callable[..., Ended]
) -> None:
    """Regression: `nan` ended with a traceback."""
    assert run_here("--data", str(tmp_path), *words.split(), text).status == 2


@pytest.mark.parametrize("expires", ["9" * 20 + "d", "0d", "2020-01-31", "3000000d", "d", "²d", ""])
def test_expiry_must_be_ahead(expires: str, tmp_path: Path, run_here: Callable[..., Ended]) -> None:
    """Regression: a long one ended with a traceback, and an earlier one made an account without any use."""
    file = tmp_path / "accounts"
    done = run_here("token", "add", "a", "--role", "read", "--expires", expires, "--file", str(file))
    assert (done.status, file.exists()) == (2, False)


@pytest.mark.parametrize("has_reader", [False, True])
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_account_whose_token_cannot_be_printed_is_not_added(
    form: Sequence[str], has_reader: bool, tmp_path: Path
) -> None:
    file = tmp_path / "accounts"
    command = [sys.executable, "-c", PROGRAM + "main()", "token", "add", "a", "--role", "read", "--file", str(file)]
    with open("/dev/full" if has_reader else _pipe_without_reader(), "wb") as output:
        done = subprocess.run([*command, *form], stdout=output, stderr=subprocess.PIPE)
    assert (done.returncode, file.exists(), len(done.stderr.splitlines())) == (1, False, 1)


def _pipe_without_reader() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@pytest.mark.parametrize("words", ["--data {}/state torture", "torture --folder {}/new"])
def test_torture_names_a_folder_that_it_cannot_make_and_the_option_for_another(
    words: str, tmp_path: Path, run_here: Callable[..., Ended]
) -> None:
    file = tmp_path / "file"
    file.touch()
    done = run_here(*words.format(file).split())
    assert done.status == 1
    assert str(file) in done.err
    assert "--folder" in done.err
