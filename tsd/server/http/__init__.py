"""HTTP on the daemon's port: connections, bodies, routing, security headers and request statistics."""
