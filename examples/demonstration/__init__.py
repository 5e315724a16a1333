"""The parts of demo.py: the run, its recording, the terminal display and the picture."""
