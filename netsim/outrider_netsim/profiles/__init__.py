"""What links are like: profiles, their parts, files and traces. Data without clock or engine."""
