"""/api/put compared with telnet: CPU of the daemon per stored point, by batch size.

One process posts the points of the telnet round as JSON. Each connection sends the next batch after the previous one is
acknowledged, and so on disk.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from bench.concurrency import Done, run_concurrently
from bench.daemon import Daemon, serving
from bench.http_put import posting
from bench.lines import Load, rounds
from bench.report import machine, publish, spread, table
from bench.sender import send


@click.command()
@click.option("--series", default=1000, help="Series.")
@click.option("--points", default=200, help="Points of each series per measurement.")
@click.option("--batch", "batches", multiple=True, default=[1000, 100], help="Points per request; may be repeated.")
@click.option("--rounds", "times", default=3, help="Measurements of each way, alternating.")
def put(series: int, points: int, batches: tuple[int, ...], times: int) -> None:
    """CPU of the daemon per point with /api/put and with telnet."""
    load = Load(series, points, 4)
    found: dict[str, list[tuple[float, float]]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="tsd-bench-", ignore_cleanup_errors=True) as folder,
        serving(Path(folder), {}) as daemon,
    ):
        send(load, daemon.port, "sync")  # assigns UIDs
        stored = _await(daemon, load.lines)
        for _ in range(times):
            for batch in (0, *batches):
                load = load.after
                name = f"/api/put, {batch:,} points a request" if batch else "telnet"
                before = daemon.usage().cpu_s
                sent = _post(load, daemon.port, batch) if batch else send(load, daemon.port, "sync")
                stored = _await(daemon, stored + load.lines)
                cpu_us = (daemon.usage().cpu_s - before) / load.lines * 1e6
                found.setdefault(name, []).append((load.lines / (sent.end - sent.start), cpu_us))
    rows = [
        [name, spread([rate for rate, _ in figures], 0), spread([cpu_us for _, cpu_us in figures])]
        for name, figures in found.items()
    ]
    head = f"{load.series:,} series × {load.points:,} points, {load.connections} connections; {machine()}.\n\n"
    publish("put", head + table(["way", "points/s until acknowledged", "CPU µs/point until stored"], rows), found)


def _await(daemon: Daemon, points: int) -> int:
    daemon.flush()
    daemon.await_stored(points)
    return points


def _post(load: Load, port: int, batch: int) -> Done:
    done = subprocess.run(
        [sys.executable, "-m", "bench.put", json.dumps([load, port, batch])], check=True, stdout=subprocess.PIPE
    )
    return Done(*json.loads(done.stdout))


def bodies(load: Load, connection: int, batch: int) -> list[bytes]:
    """Return one connection's points as arrays of `batch`, with the numbers' text unchanged."""
    points = []
    for line in b"".join(rounds(load, connection)).decode().splitlines():
        _, metric, at, value, *tags = line.split(" ")
        named = ",".join(f'"{tagk}":"{tagv}"' for tagk, tagv in (tag.split("=") for tag in tags))
        points.append(f'{{"metric":"{metric}","timestamp":{at},"value":{value},"tags":{{{named}}}}}')
    return [f"[{','.join(points[at : at + batch])}]".encode() for at in range(0, len(points), batch)]


def main() -> None:
    """Run the sending process."""
    arguments, port, batch = json.loads(sys.argv[1])
    load = Load(*arguments)
    texts = [bodies(load, number, batch) for number in range(load.connections)]  # before timing starts

    done = run_concurrently([posting(requests, port) for requests in texts])
    print(json.dumps(done))


if __name__ == "__main__":
    main()
