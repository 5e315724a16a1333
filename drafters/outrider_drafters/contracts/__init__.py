"""What every drafter offers: its state, its tap and the shape of its trees."""
