"""Virtual time: drafts and answers taped once, then replayed against links and hardware without sleeping."""
