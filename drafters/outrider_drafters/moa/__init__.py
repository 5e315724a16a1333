"""Mixture of Attentions."""
