"""HumanEval: completions, the sandbox that judges them, and what drafters make of them after the link has died."""
