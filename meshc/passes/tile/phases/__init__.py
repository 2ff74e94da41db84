"""One program for both phases of a language model: joined, with weights that move in between."""
