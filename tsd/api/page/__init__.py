"""The page for people: graphs of queries, and the state of the daemon."""
