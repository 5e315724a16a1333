"""Studies of the embedded pair or others: exactness, and the cost of a pass."""
