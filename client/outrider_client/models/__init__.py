"""The models on the device: drafter, tokenizer and the parts borrowed from the target. Never the target itself."""
