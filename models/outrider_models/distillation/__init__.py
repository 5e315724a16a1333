"""Chats that a target writes itself, for training drafters: user turns, then its greedy answers to them."""
