"""Hydra and Hydra++."""
