"""The command `outrider-bench`."""
