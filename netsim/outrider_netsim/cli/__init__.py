"""The command `outrider-netsim`, a file a group."""
