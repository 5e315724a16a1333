"""Descriptions of links: profiles, their parts, files and traces. Pure data, without clock or engine."""
