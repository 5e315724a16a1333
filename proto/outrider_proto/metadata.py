"""What a stream says before its first frame, for whoever stands between client and server."""

# Random, the same on every connection of a client's session and on no other: balancers send a session that resumes to
# where its K/V lies. It is not the server's id of the session and gives nobody the right to it.
SESSION_HEADER = "x-session-id"
