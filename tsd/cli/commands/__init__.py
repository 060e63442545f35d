"""Commands whose work takes long to import: their options and help. The work is in the module that `perform` names.

These modules import no store, no trio and no numpy, so that `--help`, a wrong option and a completion take little time.
"""
