"""The command `outrider-models`."""
