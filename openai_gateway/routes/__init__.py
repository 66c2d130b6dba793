"""The HTTP endpoints, one file each."""
