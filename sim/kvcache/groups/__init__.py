"""Hybrid memory: layers that keep everything, a window, a chunk or a state, in groups over one pool of blocks.

The one idea: a request has a table of blocks in every group, all groups draw from one free list, and a prefix is hit
as far as every group still has what the next token looks at (docs/hybrid.md)."""
