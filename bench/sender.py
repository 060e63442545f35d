"""Send a load over its connections at full speed, and wait for each connection's answer to a last command.

It is a separate process, so that its CPU is not counted.
"""

import json
import socket
import subprocess
import sys
from collections.abc import Callable

from bench.concurrency import Done, run_concurrently
from bench.lines import Load, rounds


def send(load: Load, port: int, last: str) -> Done:
    """Send the load to 127.0.0.1 and wait for the answers to `last`: `sync` for tsd, `version` for OpenTSDB. Without
    it, wait for the end of the connections."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.sender", json.dumps([load, port, last])], check=True, stdout=subprocess.PIPE
    )
    return Done(*json.loads(done.stdout))


def main() -> None:
    """Run the sending process."""
    arguments, port, last = json.loads(sys.argv[1])
    load = Load(*arguments)
    texts = [b"".join(rounds(load, number)) for number in range(load.connections)]  # before timing starts

    def delivery(text: bytes) -> Callable[[], str]:
        connection = socket.create_connection(("127.0.0.1", port))

        def deliver() -> str:
            with connection:
                connection.sendall(text + last.encode() + b"\n" if last else text)
                if not last:
                    connection.shutdown(socket.SHUT_WR)
                return connection.recv(65536).decode(errors="replace")

        return deliver

    print(json.dumps(run_concurrently([delivery(text) for text in texts])))


if __name__ == "__main__":
    main()
