"""A real HBase and a real OpenTSDB on this machine: fetched, started, watched and ended.

Everything of one of them lies in one folder that the caller names; nothing listens but on 127.0.0.1.
"""
