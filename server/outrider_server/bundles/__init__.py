"""Edge bundles that the server builds and hands out."""
