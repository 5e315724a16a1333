"""Weights for the edge device: bundles, and quantized ones."""
