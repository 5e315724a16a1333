"""Spec-Bench: its questions asked in many ways, its answer files, and the figures that it computes from them."""
