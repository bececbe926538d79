"""Arrow columns as numpy arrays and back, as `logcal` reads tables with."""

from logcal.arrow_columns import as_column, as_numpy, column_of, null_mask

__all__ = ["as_column", "as_numpy", "column_of", "null_mask"]
