"""The embedded models, their tokenizer and TOML tables."""
