"""Drafters, borrowed target weights and edge bundles: opened, checked and fingerprinted."""
