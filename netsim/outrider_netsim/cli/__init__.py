"""The command `outrider-netsim`, one module per group of commands."""
