"""Parts that all studies share: the pair, processes, prompts, reference answers, reports, tables and plots."""
