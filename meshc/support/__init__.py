"""What everything stands on: diagnostics, source spans, text. Knows nothing of compilers."""
