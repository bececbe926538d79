"""Points, passes, maps, orders and sums that methods and measures share."""
