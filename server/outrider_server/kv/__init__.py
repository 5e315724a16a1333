"""Where rows live: the memory budget, stores and their pool, prefixes that sessions share."""
