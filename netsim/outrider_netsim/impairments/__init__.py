"""Impairments of packets on a link, one per module, without clock or I/O. path.py combines them."""
