"""Folders and files of results."""
