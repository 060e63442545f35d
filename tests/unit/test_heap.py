"""What malloc keeps."""

import resource
import subprocess
import sys

ALLOCATE = """
import resource
from tsd.heap import keep_freed_memory
if {kept}:
    assert keep_freed_memory()
for _ in range(50):
    held = [bytes(100_000) for _ in range(100)]
    del held
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""


def faults(*, kept: bool) -> int:
    words = [sys.executable, "-c", ALLOCATE.format(kept=kept)]
    return int(subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout)


def test_memory_that_is_used_again_and_again_is_not_faulted_in_each_time() -> None:
    again = 50 * 100 * 100_000 // resource.getpagesize()
    assert faults(kept=True) < again // 4
