"""A feed-forward layer: two products by rows."""
