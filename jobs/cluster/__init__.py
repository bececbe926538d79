"""Clusters: kinds, watching, worker processes."""
