"""Adding columns to Parquet files while what is there stays as it is, byte for byte."""
