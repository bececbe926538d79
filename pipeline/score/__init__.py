"""Adding calibrated probabilities to a log's own files."""
