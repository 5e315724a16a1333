"""Pulling edge bundles from a server."""
