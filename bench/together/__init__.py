"""`scripts/bench all`: the daemon and its peers side by side, from the same lines, and what came of it in tables and
plots."""
