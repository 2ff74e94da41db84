"""The logits behind the last token of a chunk."""
