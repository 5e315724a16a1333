"""The server configuration, its options and its TOML file."""
