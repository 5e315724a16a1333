"""Suffix decoding: drafts counted from the text and from earlier answers."""
