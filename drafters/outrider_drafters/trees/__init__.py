"""Growing draft trees, and drafting ahead for the likeliest verdicts."""
