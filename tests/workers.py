"""Processes that share the work of one command."""

from concurrent.futures import ProcessPoolExecutor

from bench.tied import end_with_parent


def tied_workers(jobs: int) -> ProcessPoolExecutor:
    """Return a pool of processes that the kernel ends with this one. Daemons in them take SIGTERM as their own."""
    return ProcessPoolExecutor(jobs, initializer=end_with_parent)
