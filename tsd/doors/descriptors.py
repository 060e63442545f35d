"""File descriptors: how many this process may have open, and how many of them connections may take.

The rest is for the journal, the store and the control socket. A kernel gives out the lowest number that is free, so the
number of a new connection tells how many descriptors are in use, whoever has them.
"""

import resource

import structlog

log = structlog.get_logger(__name__)

MOST = 1 << 20  # asked for: beyond it some kernels and containers know no bound
RESERVE = 600  # RocksDB keeps at most 512 files open
RESERVED_SHARE = 4  # of a process that may open few, the reserve is a quarter at most


def raise_limit() -> None:
    """Let this process open as many files as its user may give it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:  # a container may forbid even that
        log.warning("the limit of open files cannot be raised", limit=soft, wanted=wanted, because=str(error))
        return
    log.info("limit of open files raised", before=soft, now=wanted, for_connections=for_connections())


def for_connections() -> int:
    """Descriptors below this number may be connections'. Asked anew each time: an operator may change the limit
    (`prlimit`) of a daemon that runs."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY:
        return MOST
    return soft - min(RESERVE, soft // RESERVED_SHARE)
