"""Real peers for tests, HBase and OpenTSDB, and their requirements."""
