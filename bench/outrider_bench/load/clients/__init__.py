"""The processes and clients that make the load."""
