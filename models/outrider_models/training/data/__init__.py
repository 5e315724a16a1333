"""Texts to train on: chats of files, and the corpus that is generated on the way."""
