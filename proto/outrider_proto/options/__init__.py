"""Options: a field of a frozen dataclass is one on the command line, a key of the TOML file, and a line of help."""
