"""Chooses the mode of an answer and its parameters from measurements. Pure: time is an argument."""
