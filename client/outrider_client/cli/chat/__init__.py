"""`outrider chat`: a conversation on a terminal or a pipe."""
