"""Tokens and their text: transcript, detokenizer, log probabilities. No I/O and no clock."""
