"""Measuring a link through any engine, and judging it by its profile."""
