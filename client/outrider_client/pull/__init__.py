"""Downloads edge bundles from a server."""
