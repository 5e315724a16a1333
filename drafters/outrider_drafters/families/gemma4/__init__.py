"""Gemma-4 assistants."""
