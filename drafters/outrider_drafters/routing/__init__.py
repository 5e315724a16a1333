"""Several heads on one client, of which one drafts."""
