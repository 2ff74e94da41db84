"""The look-up of token ids."""
