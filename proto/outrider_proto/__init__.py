"""The protocol between client and server: frames, trees, tokens and features as bytes, and errors. No torch, no I/O."""

PROTOCOL_VERSION = 1
