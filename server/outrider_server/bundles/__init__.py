"""Edge bundles that the server builds and serves."""
