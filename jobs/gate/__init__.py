"""The gate: checks that a table must pass before it is used."""
