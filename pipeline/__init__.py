"""Processing of prediction logs, score tables, lookup tables, scored logs, and the store of tables."""
