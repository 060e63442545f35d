"""The daemon process: wiring of the parts, lifecycle, routes, systemd and diagnostics."""
