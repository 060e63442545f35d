"""The HBase engine, through its Thrift gateway."""
