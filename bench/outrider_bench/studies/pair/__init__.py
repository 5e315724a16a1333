"""Studies of the embedded pair or others: quality, exactness, offline quality, overhead, recovery, cost of a pass."""
