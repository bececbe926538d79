"""The experiments of the methods' papers; imported by their job only."""
