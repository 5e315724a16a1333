"""The embedded models, their tokenizer, and dataclasses from TOML tables."""
