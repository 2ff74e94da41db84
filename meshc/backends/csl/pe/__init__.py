"""The file of one phase: variables, functions and cases that every PE runs, and their memory."""
