"""CSL text to syntax trees."""
