"""Moving house: the tables of one store copied into another, cell by cell, with their write times."""
