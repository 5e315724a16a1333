"""Drafters slowed down to the speed of named hardware."""
