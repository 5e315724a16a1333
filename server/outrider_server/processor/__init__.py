"""int8 targets on a processor: their codes, and the compiled steps of their passes. Knows no slots."""
