"""Code shared by methods and measures: points, passes, maps, orders, exact sums, curves."""
