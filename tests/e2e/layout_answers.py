"""Answers of a daemon about points that start at T, whatever the layout of its tables."""

import json
import urllib.request
from typing import Any

from tests.e2e.command import Served

T = 1356998400
SPAN_S = 200_000  # of each query


def query(served: Served, words: str, method: str = "GET") -> Any:
    """Return the groups of an answer: values by time, by the first tag's value."""
    url = f"http://127.0.0.1:{served.port}/api/query?start={T}&end={T + SPAN_S}&{words}"
    with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=60) as answer:
        return {next(iter(one["tags"].values()), ""): one["dps"] for one in json.load(answer)}


def kairos_values(served: Served, metric: str) -> list[Any]:
    """Return the values of KairosDB's query for a metric."""
    body = {"start_absolute": T * 1000, "end_absolute": (T + SPAN_S) * 1000, "metrics": [{"name": metric}]}
    url = f"http://127.0.0.1:{served.port}/api/v1/datapoints/query"
    with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=60) as answer:
        found: list[Any] = json.load(answer)["queries"][0]["results"][0]["values"]
        return found
