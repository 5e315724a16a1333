"""Drafters compared: acceptance, cost, edge weights, traces."""
