"""The gateway, private prompts and Ray."""
