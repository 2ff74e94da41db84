"""A GPU by its driver: context, memory, streams and graphs, launches, and the machine of a step."""
