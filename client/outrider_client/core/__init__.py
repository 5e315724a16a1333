"""Configuration, prompts, events and statistics of the public API."""
