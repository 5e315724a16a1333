"""Multi-token-prediction layers."""
