"""`tsd torture`: daemons of its own are loaded and harmed, and what they acknowledged is looked for afterwards."""
