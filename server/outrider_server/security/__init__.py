"""Who may connect, what they may do, and how much of it."""
