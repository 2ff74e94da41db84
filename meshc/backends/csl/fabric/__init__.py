"""What a program sends over: colors, queues, switch tables, and fabric DSDs."""
