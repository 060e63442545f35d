"""What `tsd torture` is asked for: faults, rounds, and options of a run."""

from typing import NamedTuple

from tsd.errors import TsdError

ANYWHERE = ("kill", "full", "clock", "clients", "storm")  # faults on every engine
ON_SERVERS = ("refuse", "hang", "stall", "late", "cut", "lost", "garble", "repeat", "outage")
ON_BIGTABLE = ("errors",)
PAUSE, CRASH = "pause", "crash"
ON_PROCESSES = (PAUSE, CRASH)  # of the servers: others may use them, so only if they are named


class Options(NamedTuple):
    """Options of a run."""

    outage_s: tuple[float, float] = (1.0, 3.0)  # the shortest and the longest
    full_load: int = 600_000  # lines before an outage, until memory use is steady
    memory_share: float = 1.2  # of its level before, at most
    resume_s: float = 10.0  # until the store is written again, at most


DEFAULTS = Options()


class BadFaults(TsdError):
    """Raised for faults that are unknown or not available on the engine."""


def parse_faults(words: str, rounds: int, *, servers: bool, bigtable: bool = False) -> dict[str, int]:
    """Parse fault names with commas between, each with or without `=ROUNDS`. Raise BadFaults.

    An empty text means all faults but those of ON_PROCESSES, `rounds` each.

    >>> parse_faults("kill=200,full", 20, servers=False)
    {'kill': 200, 'full': 20}
    """
    usual = (*ANYWHERE, *(ON_SERVERS if servers else ()), *(ON_BIGTABLE if bigtable else ()))
    there = (*usual, *(ON_PROCESSES if servers else ()))
    if bigtable:
        there = tuple(name for name in there if name != CRASH)  # the emulator keeps nothing on disk
    found: dict[str, int] = {}
    for word in filter(None, (part.strip() for part in words.split(","))):
        name, equals, count = word.partition("=")
        if name not in there:
            raise BadFaults(f"got fault {name!r}, wanted some of {', '.join(there)}")
        if equals and not (count.isdecimal() and int(count)):
            raise BadFaults(f"got {word!r}, wanted {name}=ROUNDS")
        found[name] = int(count) if equals else rounds
    return found or dict.fromkeys(usual, rounds)
