"""Pictures of what queries find: read from a request's parameters, drawn by matplotlib in a process of their own."""
