"""What goes wrong around a server: what callers see, when it serves again, and that nothing is left behind."""
