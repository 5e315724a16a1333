"""Drafters compared: acceptance, cost, edge weights, routing, traces."""
