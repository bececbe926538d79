"""Addition of columns to Parquet files whose existing bytes do not change."""
