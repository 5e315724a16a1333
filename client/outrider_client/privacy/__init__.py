"""Splits prompts into safe and private parts and keeps the private ones on the device. See docs/privacy.md."""
