"""Showing an answer while it is written."""
