"""Studies of serving: the gateway, private prompts, Ray."""
