"""Sigmoids of the score: Platt scaling, beta calibration."""
