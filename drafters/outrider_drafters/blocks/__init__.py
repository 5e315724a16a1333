"""What drafters are built of: transformer blocks, positions, rows that grow and are dropped."""
