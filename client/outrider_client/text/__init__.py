"""Tokens and text: transcript, detokenizer, log probabilities."""
