"""The command `outrider-server`."""
