"""The entity tables: all data of one entity in one row, and the newest values of all entities in another table."""
