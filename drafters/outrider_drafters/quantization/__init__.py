"""Weights for the edge device: bundles, and quantised ones."""
