"""Drafting across a link, measured: every mode beside the controls, on the same prompts, in the same run."""
