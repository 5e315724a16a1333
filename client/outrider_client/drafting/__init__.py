"""The drafting thread and the choice of tokens without a server."""
