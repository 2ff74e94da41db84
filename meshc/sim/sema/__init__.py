"""Types, lazy compile-time evaluation and lowering of CSL."""
