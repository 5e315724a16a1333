"""Authentication, scopes, quotas and rate limits; TLS."""
