"""`scripts/bench all`: the daemon and other systems with the same lines, with results as tables and plots."""
