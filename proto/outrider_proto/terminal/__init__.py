"""Text of strangers on a terminal: answers, names, errors and logs."""
