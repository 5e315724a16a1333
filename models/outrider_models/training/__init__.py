"""Training of targets and drafters on plain transformers models."""
