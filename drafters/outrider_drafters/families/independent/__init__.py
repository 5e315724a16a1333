"""Any small language model of the target's tokenizer."""
