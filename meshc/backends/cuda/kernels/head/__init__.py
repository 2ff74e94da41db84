"""The last norm and the logits: a product by rows."""
