"""What leaves the device and what does not: prompts in safe and private parts. See docs/privacy.md."""
