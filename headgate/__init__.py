"""Headgate's Python SDK."""
