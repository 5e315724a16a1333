"""Training the embedded models on the generated corpus."""
