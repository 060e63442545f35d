"""`tsd torture`: load daemons, inject faults, and verify that every acknowledged point is stored."""
