"""The cost of coarse, late and missing features."""
