"""A scenario file: read, checked, resolved, explained."""
