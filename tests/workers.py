"""Processes that share the work of one command."""

import ctypes
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress

from bench.tied import end_with_parent

CHILD_SUBREAPER = 36  # of prctl(2)


@contextmanager
def tied_workers(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Run a pool of processes that the kernel ends with this one. Daemons in them take SIGTERM as their own.

    SIGTERM to this process, or an error, ends them at once, with the processes that they have started. Their temporary
    files are removed after that.
    """
    ctypes.CDLL(None).prctl(CHILD_SUBREAPER, 1)  # processes of killed workers are waited for
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="workers-") as folder:
        fork = multiprocessing.get_context("fork")  # a worker is a child of this process: the kernel ends it
        pool, killed = ProcessPoolExecutor(jobs, fork, initializer=_begin, initargs=(folder,)), list[int]()
        try:
            yield pool
        except BaseException:
            killed = _kill_all()
            raise
        finally:
            pool.shutdown(cancel_futures=True)
            signal.signal(signal.SIGTERM, before)
            for group in killed:
                with suppress(ChildProcessError):  # there is none left
                    while True:
                        os.waitpid(-group, 0)


def _begin(folder: str) -> None:
    """Prepare a worker: with its processes it is a group, and its temporary files are in a folder."""
    end_with_parent()
    os.setpgrp()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    tempfile.tempdir = folder


def _kill_all() -> list[int]:
    """Kill the workers and their processes. Return the groups of these."""
    groups = [worker.pid for worker in multiprocessing.active_children() if worker.pid is not None]
    for group in groups:
        with suppress(ProcessLookupError):
            os.kill(group, signal.SIGKILL)  # it may not have begun its group
            os.killpg(group, signal.SIGKILL)
    return groups
