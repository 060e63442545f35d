from tsd.compaction.hours import plain_note_rows

note_rows = plain_note_rows
