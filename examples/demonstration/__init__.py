"""The parts of demo.py: the stage, the record, the terminal and the picture."""
