"""Labels in other files than the predictions."""
