"""Sends a load over its connections, as fast as they take it, and reports when each one's last line was answered.

    python -m bench.sender HOST PORT SERIES POINTS CONNECTIONS LAST_COMMAND

Everything is generated before the clock starts. LAST_COMMAND (`sync`, or `version` for an OpenTSDB) ends each connection;
standard output gets the start and the end, as seconds of the monotonic clock.
"""

import socket
import sys
import threading
import time

from bench.lines import Load, rounds


def main() -> None:
    host, port, series, points, connections, last = sys.argv[1:7]
    load = Load(int(series), int(points), int(connections))
    texts = [b"".join(rounds(load, number)) for number in range(load.connections)]
    ready = threading.Barrier(load.connections + 1)
    answers: list[bytes] = []

    def send(text: bytes) -> None:
        with socket.create_connection((host, int(port))) as connection:
            ready.wait()
            connection.sendall(text)
            connection.sendall(last.encode() + b"\n")
            answers.append(connection.recv(65536))

    threads = [threading.Thread(target=send, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    ready.wait()
    start = time.monotonic()
    for thread in threads:
        thread.join()
    print(start, time.monotonic())
    print(b" ".join(answers).decode(errors="replace"), file=sys.stderr)


if __name__ == "__main__":
    main()
