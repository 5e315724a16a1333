"""The server: loads a target model, keeps sessions' K/V in slots, verifies draft trees in batches, and speaks gRPC.

Everything users import is here. Names load when they are first used: the configuration alone needs no torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
