"""Measurements that need both sides: traces, evaluation, overhead, recovery, exactness, always against controls.

What the examples use is here, and loads when it is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
