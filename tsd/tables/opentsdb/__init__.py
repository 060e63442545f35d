"""OpenTSDB's table layout: UIDs, hour rows, metadata, trees, annotations, and their maintenance."""
