"""Points, passes, calibration maps, sorting and exact sums, which methods and measures share."""
