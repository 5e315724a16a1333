"""Drafters compared."""
