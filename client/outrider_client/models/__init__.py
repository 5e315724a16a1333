"""The drafter, the tokenizer and the borrowed target parts on the device."""
