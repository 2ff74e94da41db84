"""The builtins of CSL, by area. Each module fills the registry."""
