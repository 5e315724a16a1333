"""The contract of the two sides: frames, trees, tokens and features as bytes, and errors. No torch, no I/O."""

PROTOCOL_VERSION = 1
