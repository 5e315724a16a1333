"""`outrider-server check`: tries a configuration out, part by part."""
