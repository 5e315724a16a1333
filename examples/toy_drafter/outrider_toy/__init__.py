"""A drafter family in a package of its own: EAGLE's recursion with two matrices in place of a decoder layer."""
