"""Sends a load over its connections, as fast as they are read, and waits for each one's answer to a last command.

It is a process of its own, so that its work is not counted as anybody's.
"""

import json
import socket
import subprocess
import sys
from collections.abc import Callable

from bench.at_once import Done, at_once
from bench.lines import Load, rounds


def send(load: Load, port: int, last: str) -> Done:
    """Send it to 127.0.0.1 and wait for the answers to `last`: `sync` here, `version` where that is not known, and
    nothing for who answers nothing: there the end is waited for."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.sender", json.dumps([load, port, last])], check=True, stdout=subprocess.PIPE
    )
    return Done(*json.loads(done.stdout))


def main() -> None:
    """What the process does."""
    arguments, port, last = json.loads(sys.argv[1])
    load = Load(*arguments)
    texts = [b"".join(rounds(load, number)) for number in range(load.connections)]  # before the clock starts

    def delivery(text: bytes) -> Callable[[], str]:
        connection = socket.create_connection(("127.0.0.1", port))

        def deliver() -> str:
            with connection:
                connection.sendall(text + last.encode() + b"\n" if last else text)
                if not last:
                    connection.shutdown(socket.SHUT_WR)
                return connection.recv(65536).decode(errors="replace")

        return deliver

    print(json.dumps(at_once([delivery(text) for text in texts])))


if __name__ == "__main__":
    main()
