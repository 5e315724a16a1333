"""Memory for K/V and features: budget, buffers and their pool, slots, shared prefixes."""
