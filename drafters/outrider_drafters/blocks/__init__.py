"""Building blocks of drafters: transformer blocks, RoPE, caches, token states and tree masks."""
