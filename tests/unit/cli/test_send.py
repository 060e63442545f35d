"""`tsd send` and its input."""

import socket
import subprocess
import sys
import threading

import pytest

HOST = "127.0.0.1"


def test_unreadable_input_ends_the_command() -> None:
    """Regression: it waited for the daemon's last reply, which never came."""
    with socket.create_server((HOST, 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                while connection.recv(1024):
                    pass

        daemon = threading.Thread(target=answer)
        daemon.start()
        command = [sys.executable, "-m", "tsd", "send", "--host", HOST, "--port", str(server.getsockname()[1])]
        done = subprocess.run(["sh", "-c", 'exec "$@" <&-', "sh", *command], capture_output=True, text=True)
        daemon.join()
    assert done.returncode == 1
    assert done.stderr.startswith("tsd: standard input cannot be read: ")


def test_daemon_that_ends_before_the_input_is_no_crash() -> None:
    """Regression: Python aborted, because a thread waited for more input."""
    with socket.create_server((HOST, 0)) as server:
        command = [sys.executable, "-m", "tsd", "send", "--host", HOST, "--port", str(server.getsockname()[1])]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, **pipes) as sending:
            assert sending.stdin is not None
            assert sending.stderr is not None
            connection, _ = server.accept()
            with connection:
                sending.stdin.write(b"put m 1700000000 1 a=b\n")
                sending.stdin.flush()
                connection.recv(1024)
            assert (sending.wait(), b"may not be on disk" in sending.stderr.read()) == (1, True)


@pytest.mark.parametrize("host", ["web01..example", "x" * 64])
def test_impossible_name_of_a_host_is_reported(host: str) -> None:
    """Regression: it ended with a traceback."""
    done = subprocess.run([sys.executable, "-m", "tsd", "send", "--host", host, "x"], capture_output=True, text=True)
    assert (done.returncode, done.stderr.startswith("tsd: "), host in done.stderr) == (1, True, True)


def test_arguments_are_sent_byte_for_byte() -> None:
    """Regression: bytes that are no UTF-8, as of a shell script in ISO-8859-1, ended the command with a traceback."""
    line = b"put m 1700000000 1 host=h\xf6st"
    received: list[bytes] = []
    with socket.create_server((HOST, 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection, connection.makefile("rb") as lines:
                received.extend(iter(lines.readline, b"exit\n"))
                connection.sendall(b"synced 1\n")

        daemon = threading.Thread(target=answer, daemon=True)  # without a client it would wait
        daemon.start()
        command = [sys.executable, "-m", "tsd", "send", "--host", HOST, "--port", str(server.getsockname()[1]), line]
        done = subprocess.run(command, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    daemon.join()
    assert received == [line + b"\n", b"sync\n"]
