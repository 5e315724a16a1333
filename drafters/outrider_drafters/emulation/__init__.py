"""Drafters slowed down to the pace of named hardware."""
