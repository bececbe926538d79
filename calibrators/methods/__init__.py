"""The calibrators: one file a method, one contract."""
