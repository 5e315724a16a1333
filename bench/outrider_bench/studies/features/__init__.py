"""The cost of coarse and late features."""
