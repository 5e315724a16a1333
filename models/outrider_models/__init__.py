"""The embedded models: their weights, the corpus they learn from, their training, and edge bundles.

Knows nothing of servers, clients or links. Everything public is listed in `__init__.pyi` and imported on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
