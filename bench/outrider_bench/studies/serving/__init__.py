"""Studies of serving: the gateway, Ray."""
