"""The attention block: keys and values in caches."""
