"""The command `outrider-lab`."""
