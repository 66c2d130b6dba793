"""The gateway's own figures, for Prometheus."""
