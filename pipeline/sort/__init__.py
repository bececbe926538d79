"""The out-of-core sort: rows into sorted runs, runs into a score table; daily tables of sorted runs."""
