"""Drafting across an emulated link: every mode beside the controls, on the same prompts, in the same run."""
