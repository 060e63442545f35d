# Completion of tsd in fish: the command itself knows its commands and options.
_TSD_COMPLETE=fish_source tsd | source
