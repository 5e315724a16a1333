"""What torchao says of itself where it is installed: of extensions that it does without, on standard error. Importing
it says so, and transformers imports it with its models."""

from __future__ import annotations

import logging


def hush_torchao() -> None:
    """Let torchao and what of torch its import upsets tell of errors only."""
    for name in ("torchao", "torch.utils._pytree"):
        logging.getLogger(name).setLevel(logging.ERROR)
