"""The gate: held-out rows, and what a table must pass before it is used."""
