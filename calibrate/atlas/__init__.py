"""A GPU as tables of measured operators, and any model's step time priced by them.

`tables` is the file (one .npz a GPU, built by tools/export_atlas.py), `shapes` finds measured neighbours of a shape,
`price` is what one call of an operator takes, `steps` adds a model's operators up.
"""
