"""Drafters that read the newest feature alone: Medusa, Hydra, Hydra++."""
