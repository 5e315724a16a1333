"""Drafters: the taps that feed them, their networks and states, the trees they grow, the files they come from."""

import logging

import lazy_loader

# Must run before anything imports torchao, as transformers does with its models wherever it is installed: while it is
# imported, torchao warns of extensions that it does without, and torch of pytree classes that torchao registers twice.
for _name in ("torchao", "torch.utils._pytree"):
    logging.getLogger(_name).setLevel(logging.ERROR)

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
