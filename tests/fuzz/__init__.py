"""Random malformed lines and requests: see __main__."""
