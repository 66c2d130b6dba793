"""What is around every request: its id and log line, keys, the length of its body."""
