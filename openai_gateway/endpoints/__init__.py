"""The HTTP endpoints: a folder each where protocol, route and writer lie together, or a file."""
