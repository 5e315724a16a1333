"""Training of the embedded models: the generated corpus as a source, the target, and recipes."""
