"""A drafter's files as they lie on disk: safetensors, pickles, GGUF, configurations."""
