"""The campaign: every job disturbed in every way there is, run again, and compared with an undisturbed run."""
