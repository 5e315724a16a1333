"""Loading the configured target, whole in this process or divided among several."""

from __future__ import annotations

from outrider_server.config.config import ServerConfig
from outrider_server.engine.target import Target


def load_target(config: ServerConfig) -> Target:
    """Load the target. Raises UsageError."""
    if config.tensor_parallel == 1:
        return Target.load(
            config.target,
            config.dtype,
            config.device,
            config.max_context,
            batch_invariant=config.batch_invariant,
        )
    from outrider_server.parallel.driver import load_tensor_parallel  # torch.distributed: only where it is needed

    return load_tensor_parallel(config)
