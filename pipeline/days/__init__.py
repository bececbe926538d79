"""The days of a table's log: their files, their records in the store, and their states."""
