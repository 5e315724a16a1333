"""Drafting on the device: the drafting thread, and writing tokens without a server."""
