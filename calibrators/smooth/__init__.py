"""Smooth curves of the score."""
