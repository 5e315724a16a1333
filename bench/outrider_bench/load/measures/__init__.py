"""Counters, histograms and resource use of a load run."""
