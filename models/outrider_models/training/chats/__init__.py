"""Training drafters on files of chats."""
