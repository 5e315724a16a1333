"""Which mode an answer rides in, and how: from measurements to a choice. Pure."""
