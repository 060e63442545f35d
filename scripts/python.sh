# shellcheck shell=bash
# Sourced by the other scripts: messages, versions, and the choice of a Python. Needs $root.

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

# Runs a command and shows its progress on a terminal. Elsewhere prints its output only if it fails.
watched() {
    if [ -t 2 ]; then "$@" >&2 || die "failed: $*"; else quietly "$@"; fi
}

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

# Prints the first Python of version 3.11 or newer: $PYTHON, or one with a common name.
find_python() {
    local name
    for name in "${PYTHON:-}" python3.14 python3.13 python3.12 python3.11 python3 python; do
        if [ -n "$name" ] && is_new_enough "$name"; then
            command -v "$name"
            return
        fi
    done
    say "needs Python 3.11 or newer; python3 is $(python3 --version 2>/dev/null || echo 'missing')."
    die "Debian 12, Ubuntu 24.04: apt-get install python3 python3-venv. In another place: PYTHON=/its/path ${0##*/} …"
}

# Prints a Python of a version, such as 3.12: on PATH, of pyenv or of uv. Fails if there is none.
python_of() {
    local name
    for name in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python "$(uv python find --no-python-downloads "$1" 2>/dev/null)"; do
        if "$name" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$1')" 2>/dev/null; then
            command -v "$name"
            return
        fi
    done
    return 1
}

# Makes the environment $1 for the Python $2, with pip.
new_venv() {
    "$2" -c 'import venv, ensurepip' 2>/dev/null ||
        die "$2 lacks the module venv. On Debian or Ubuntu: apt-get install python3-venv"
    quietly "$2" -m venv --without-pip --clear "$1"
    # Python's own copy of pip is installed in four times the time, but needs no network and no pip outside.
    "$2" -m pip --python "$1/bin/python" install --quiet --no-compile pip >/dev/null 2>&1 ||
        quietly "$1/bin/python" -m ensurepip --default-pip
}

# Prints the requirements of a section of setup.cfg, one a line.
required() { sed -n "/^$1/,/^[a-z]* =\$\|^\$/s/^    //p" "$root/setup.cfg"; }

# Prints a version as dpkg orders it: 0.2.0.dev7 is older than 0.2.0, as dpkg compares 0.2.0~dev7.
debian_version() { sed -E 's/\.dev([0-9])/~dev\1/; s/^([0-9.]+)(a|b|rc)([0-9])/\1~\2\3/' <<<"$1"; }
