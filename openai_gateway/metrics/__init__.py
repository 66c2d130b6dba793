"""The gateway's own metrics, for Prometheus."""
