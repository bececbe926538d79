"""Bayesian binnings: the best one (SBB), and the average of all (ABB)."""
