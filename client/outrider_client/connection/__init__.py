"""The session with one server and the link it runs over."""
