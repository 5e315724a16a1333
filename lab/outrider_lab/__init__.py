"""Reproduces the papers' tables and figures, and watches over Outrider itself; not part of what is shipped."""
