"""Weights of int8 and int4 for edge devices."""
