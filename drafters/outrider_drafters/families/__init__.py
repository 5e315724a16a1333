"""Families of drafters, a package each: family (declaration, loading), network (with its tap), drafter (client)."""
