"""The health checks of a daemon by name, for its HTTP paths and for `tsd health`."""

OK = "ok"  # result of a check that passes

# The checks of each path. `ready` reports all.
CHECKS = {"live": (), "ready": ("write", "read", "store"), "write": ("write",), "read": ("read",), "store": ("store",)}
