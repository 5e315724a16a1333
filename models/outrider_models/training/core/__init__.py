"""What all training shares: interfaces, teacher, losses, optimizers."""
