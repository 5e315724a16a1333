"""Training of drafters on files of chats."""
