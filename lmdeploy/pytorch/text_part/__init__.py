"""What workers run of a vision-language model: its text part, given the rows of images."""
