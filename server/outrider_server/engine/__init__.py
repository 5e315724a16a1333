"""One pass of the target: attention, sampling, acceptance."""
