"""CSL before it is text: its expressions, statements and declarations, and how they are printed."""
