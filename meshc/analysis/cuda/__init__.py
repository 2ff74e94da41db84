"""What a thread block takes of its core, and what blocks of a cluster send each other."""
