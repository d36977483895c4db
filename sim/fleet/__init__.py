"""Replicas, the front that feeds them, and routing between them."""
