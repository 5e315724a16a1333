"""How an answer is written: each mode a loop of its own."""
