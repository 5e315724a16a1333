"""The frame that every study runs in: its options, rows, report, table and plot."""
