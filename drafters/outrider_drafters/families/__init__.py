"""Families of drafters, one package each: family (declaration, loading), network, drafter (client), tap (server)."""
