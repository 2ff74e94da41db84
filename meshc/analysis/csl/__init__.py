"""What CSL programs take of a core, read off tile programs."""
