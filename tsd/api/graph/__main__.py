"""Draws the picture that is told on standard input, as msgpack, and writes it to standard output: `python -m
tsd.graphs`. It bounds its own memory and time before it reads anything."""

import resource
import sys

import msgspec

from tsd.graphs.drawing import draw
from tsd.graphs.picture import Picture

MEMORY_BYTES = 1 << 30
PROCESSOR_S = 30
FILE_BYTES = 16 << 20  # only matplotlib's own list of fonts is ever written


def main() -> None:
    """Draw one picture."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_S, PROCESSOR_S))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    picture = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Picture)
    sys.stdout.buffer.write(draw(picture))


if __name__ == "__main__":
    main()
