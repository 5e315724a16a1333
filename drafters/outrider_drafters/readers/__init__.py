"""Readers of model files as they lie on disk: safetensors, pickles, GGUF and config.json."""
