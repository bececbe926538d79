"""The configuration of every job: keys, loading, rendering."""
