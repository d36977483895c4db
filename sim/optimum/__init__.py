"""The offline optimum of a prefix cache: exact for hits, bounded for prefill work; each with a certificate to check."""
