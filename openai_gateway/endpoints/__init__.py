"""The HTTP endpoints: a folder each where protocol, route and writer are adjacent, or a file."""
