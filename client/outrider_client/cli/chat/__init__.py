"""`outrider chat`: a conversation on a terminal or over a pipe."""
