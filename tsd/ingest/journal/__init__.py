"""The journal: accepted lines on disk, in CRC-framed segments, until their points are stored."""
