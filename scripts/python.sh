# shellcheck shell=bash
# Sourced by the scripts beside it: how they speak, and which Python they take. Wants $root.

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
die() { say "$*"; exit 1; }

# Prints the first Python from 3.11 up: $PYTHON, the usual names, then the one .venv was made with.
find_python() {
    local name
    for name in "${PYTHON:-}" python3.13 python3.12 python3.11 python3 python "${root:?}/.venv/bin/python"; do
        if [ -n "$name" ] && "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$name"
            return
        fi
    done
    say "needs Python 3.11 or newer, and finds none (python3 is $(python3 --version 2>&1 || true))."
    die "On Debian 12 or Ubuntu 24.04: apt-get install python3 python3-venv. Or name one: PYTHON=/path/to/python3.12"
}
