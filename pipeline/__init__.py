"""Tables: prediction logs, score tables, lookup tables, scored logs, and the store that publishes them."""
