"""The inputs of a page: mix, layers, settings, variants."""
