"""The speed of others who answer from the same file, beside ours."""
