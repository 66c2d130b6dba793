"""Responses of ``/v1/responses`` that are kept to be continued, by API key, for a time and within bounds."""
