"""Lines and requests that nobody should send, by chance, in any number: see __main__."""
