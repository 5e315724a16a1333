"""Drafters and the borrowed parts of targets as they lie on disk."""
