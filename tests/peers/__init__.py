"""Real peers for tests: HBase, OpenTSDB, and what they need from this machine."""
