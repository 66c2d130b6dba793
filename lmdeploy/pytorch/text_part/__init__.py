"""What workers run of a model that sees: its text part, given the rows of images."""
