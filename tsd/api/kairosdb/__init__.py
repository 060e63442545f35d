"""KairosDB's HTTP endpoints, on any table layout."""
