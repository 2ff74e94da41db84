"""The partition plans: one file each, on a common base."""
