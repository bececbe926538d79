"""Published things: lookup tables, plain and with segments, their store, and the runs that made them."""
