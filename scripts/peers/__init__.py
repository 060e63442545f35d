"""Fetch, start, watch and stop a real HBase and a real OpenTSDB on this machine.

All files of one are in one folder that the caller names. Everything listens on 127.0.0.1 only.
"""
