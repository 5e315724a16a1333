"""What every study shares."""
