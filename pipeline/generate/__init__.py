"""Cross-validated prediction logs of labelled data."""
