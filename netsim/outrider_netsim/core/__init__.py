"""Errors, addresses and lifetimes that every package of the room uses."""
