"""Emulated links: profiles of 4G, 5G and others, and engines that put one under real TCP connections."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
