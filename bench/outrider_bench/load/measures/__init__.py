"""Counters, histograms and process figures of a load run."""
