"""The embedded models: their weights, the corpus they learn from, and their training.

Knows nothing of servers, clients or links.
"""
