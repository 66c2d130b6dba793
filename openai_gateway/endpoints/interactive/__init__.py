"""LMDeploy's ``POST /v1/chat/interactive``."""
