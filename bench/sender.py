"""Sends a load over its connections, as fast as they are read, and waits for each one's answer to a last command.

It is a process of its own, so that its work is not counted as anybody's.
"""

import json
import socket
import subprocess
import sys
import threading
import time
from typing import NamedTuple

from bench.lines import Load, rounds


class Sent(NamedTuple):
    """When it was sent, in seconds of the monotonic clock, and the answers to the last commands."""

    start: float
    end: float
    answers: list[str]


def send(load: Load, port: int, last: str) -> Sent:
    """Send it to 127.0.0.1 and wait for the answers to `last`: `sync` here, `version` where that is not known, and
    nothing for who answers nothing: there the end is waited for."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.sender", json.dumps([load, port, last])], check=True, stdout=subprocess.PIPE
    )
    return Sent(*json.loads(done.stdout))


def main() -> None:
    """What the process does."""
    arguments, port, last = json.loads(sys.argv[1])
    load = Load(*arguments)
    texts = [b"".join(rounds(load, number)) for number in range(load.connections)]  # before the clock starts
    ready = threading.Barrier(load.connections + 1)
    answers: list[str] = []

    def deliver(text: bytes) -> None:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            ready.wait()
            connection.sendall(text + last.encode() + b"\n" if last else text)
            if not last:
                connection.shutdown(socket.SHUT_WR)
            answers.append(connection.recv(65536).decode(errors="replace"))

    threads = [threading.Thread(target=deliver, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    ready.wait()
    start = time.monotonic()
    for thread in threads:
        thread.join()
    print(json.dumps(Sent(start, time.monotonic(), answers)))


if __name__ == "__main__":
    main()
