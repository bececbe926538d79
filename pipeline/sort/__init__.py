"""The out-of-core sort: rows into sorted runs, runs into a score table; days that are kept sorted."""
