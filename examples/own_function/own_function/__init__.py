"""A function of elements for meshc: softsign."""
