"""Spans of requests, with OpenTelemetry: nothing here is imported where no endpoint is set."""
