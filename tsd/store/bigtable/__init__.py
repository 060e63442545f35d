"""Engine on Google Cloud Bigtable, and on its emulator."""
