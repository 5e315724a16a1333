"""Sessions, and the streams that clients attach to them."""
