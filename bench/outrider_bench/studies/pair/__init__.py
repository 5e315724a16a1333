"""Studies of the embedded pair: quality, exactness, overhead, recovery, cost of verifying."""
