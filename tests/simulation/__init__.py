"""Deterministic simulation of the daemon's parts with faults of store, disk, connections and clock: see __main__."""
