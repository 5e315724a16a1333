"""Work on a stranger's bytes, tried in a process that can be killed."""
