"""A Java beside the test that answers a line for a line, out of one source file and OpenTSDB's jars."""

import subprocess
from pathlib import Path

from scripts.peers.java import fetch, find_java


class Asked:
    """OpenTSDB's classes, asked one question after the other."""

    def __init__(self, source: str, *options: str) -> None:
        """`source` is a file's name beside this one; `options` are the virtual machine's."""
        command = [find_java(), *options, "-cp", f"{fetch('opentsdb')}/*", Path(__file__).with_name(source)]
        self._java = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def ask(self, question: str, *words: str | int) -> str:
        """The answer, `= …`, or the refusal, `! …`. Texts go and come in hex."""
        assert self._java.stdin
        assert self._java.stdout
        shown = (str(word) if isinstance(word, int) else word.encode().hex() for word in words)
        self._java.stdin.write(" ".join((question, *shown)).encode() + b"\n")
        self._java.stdin.flush()
        return bytes.fromhex(self._java.stdout.readline().decode()).decode()

    def close(self) -> None:
        self._java.communicate(timeout=60)
