"""The embedded pair: quality, exactness, overhead, recovery."""
