"""`tsd create-tables`: OpenTSDB's four tables."""

import click
import trio

from tsd.assembly import tables
from tsd.cli.access import access
from tsd.cli.options import with_config
from tsd.config import Backend, Loaded


@click.command("create-tables")
@click.option(
    "--compression",
    default="NONE",
    type=click.Choice(["NONE", "GZ", "SNAPPY", "LZO", "LZ4", "ZSTD"], case_sensitive=False),
    help="HBase's compression; anything but NONE and GZ must be installed on every region server.",
)
@with_config
def create_tables(loaded: Loaded, compression: str) -> None:
    """Make OpenTSDB's tables where they are absent. Existing ones are left as they are."""

    async def run() -> None:
        async with access(loaded.config) as ways:
            made = await ways.store.create_tables(tables(loaded.config), compression=compression.upper())
        for table in tables(loaded.config):
            click.echo(f"{table.name}: {'created' if table.name in made else 'is there'}")
        if made and loaded.config.backend is Backend.HBASE:
            click.echo(
                "The Thrift gateway cannot set DATA_BLOCK_ENCODING. For OpenTSDB's setting, say in HBase's shell:\n"
                + "\n".join(
                    f"  alter '{table.name}', {{NAME => '{family.name.decode()}', DATA_BLOCK_ENCODING => 'DIFF'}}"
                    for table in tables(loaded.config)
                    for family in table.families
                    if table.name in made
                )
            )

    trio.run(run)
