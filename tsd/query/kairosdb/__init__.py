"""KairosDB's queries: requests, aggregators, groups and answers, over points of any table layout."""
