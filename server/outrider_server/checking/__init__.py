"""`outrider-server check`: whether a configuration would serve, tried out part by part."""
