"""Every published family of drafters, a package each."""
