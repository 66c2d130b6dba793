"""Fields of requests and engines, each declared once (`rows`); what else needs to know them reads their rows."""
