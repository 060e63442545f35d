"""`python -m tsd.api.graph`: read a picture as msgpack from standard input, draw it, and write the file to standard
output.

The process limits its own memory and time before it reads anything.
"""

import resource
import sys

import msgspec

from tsd.api.graph.picture import Picture
from tsd.api.graph.render import draw

MEMORY_BYTES = 1 << 30
PROCESSOR_S = 30
FILE_BYTES = 16 << 20  # only matplotlib's font list is written


def main() -> None:
    """Draw one picture."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_S, PROCESSOR_S))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    picture = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Picture)
    sys.stdout.buffer.write(draw(picture))


if __name__ == "__main__":
    main()
