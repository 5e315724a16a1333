"""The session with one server and the link it runs over. Knows nothing of prompts, drafts or modes."""
