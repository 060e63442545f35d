# shellcheck shell=bash
# Sourced by the other scripts: messages, and the choice of a Python. Needs $root.

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

die() {
    say "$*"
    exit 1
}

# Runs a command. If it fails, prints its output and ends the script.
quietly() {
    local said
    said=$("$@" 2>&1) || {
        printf '%s\n' "$said" >&2
        die "failed: $*"
    }
}

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

# Prints the first Python of version 3.11 or newer: $PYTHON, or one with a common name.
find_python() {
    local name
    for name in "${PYTHON:-}" python3.13 python3.12 python3.11 python3 python; do
        if [ -n "$name" ] && is_new_enough "$name"; then
            command -v "$name"
            return
        fi
    done
    say "needs Python 3.11 or newer; python3 is $(python3 --version 2>/dev/null || echo 'missing')."
    die "Debian 12, Ubuntu 24.04: apt-get install python3 python3-venv. In another place: PYTHON=/its/path ${0##*/} …"
}
