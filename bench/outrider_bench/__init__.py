"""Measurements that need server and client together, always beside controls.

The names that examples use are exported here, and load on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
