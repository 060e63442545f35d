"""All of KairosDB's endpoints."""

from typing import NamedTuple

from tsd.api.health import Health
from tsd.api.kairosdb import catalog, query
from tsd.api.kairosdb.messages import with_errors
from tsd.api.kairosdb.metadata import metadata_routes
from tsd.api.kairosdb.put import DatapointsEndpoint
from tsd.api.points import PutHandler
from tsd.api.query import Queries
from tsd.server.http.messages import Endpoint
from tsd.tables.catalog import SeriesCatalog, ServiceMetadata
from tsd.tables.reading import PointDeleter


class KairosParts(NamedTuple):
    """What the endpoints use."""

    handler: PutHandler
    queries: Queries
    deleter: PointDeleter | None  # of any times; None: the tables delete whole rows
    catalog: SeriesCatalog
    services: ServiceMetadata | None
    health: Health
    dialect: bool  # whether paths that OpenTSDB has too are KairosDB's
    has_ttl: bool  # whether the tables store a time to live
    has_texts: bool  # whether they store texts
    read_only: bool  # whether nothing may be written


def routes(parts: KairosParts) -> dict[str, Endpoint]:
    """Return the endpoints by the first words of their paths, errors in KairosDB's form."""
    found: dict[str, Endpoint] = {
        "api/datapoints": DatapointsEndpoint(parts.handler, has_ttl=parts.has_ttl, has_texts=parts.has_texts).answer,
        **query.routes(parts.queries, parts.deleter),
        **catalog.name_routes(parts.catalog),
        **catalog.health_routes(parts.health),
        **catalog.plain_routes(dialect=parts.dialect),
        **metadata_routes(parts.services, read_only=parts.read_only),
    }
    return {path: with_errors(endpoint) for path, endpoint in found.items()}
