"""The daemon's own parts on virtual time, a store, a disk and connections that fail by chance: see __main__."""
