# Completion of tsd in fish: the command itself knows its commands and options.
# click splits its lines at every comma, and so cuts descriptions at their first one.
_TSD_COMPLETE=fish_source tsd | string replace 'string split ","' 'string split --max 1 ","' | source
