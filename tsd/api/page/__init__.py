"""The web page: graphs of queries, and the state of the daemon."""
