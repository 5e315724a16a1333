"""Shared by all training: interfaces, teacher, losses, learning rates, optimizer, progress."""
