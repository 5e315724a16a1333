"""Hours of load with faults, to see whether every token is right and memory stays constant."""
