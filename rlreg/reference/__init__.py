"""The generated config reference: one record per config class, rendered by every face.

`record` reads a class through its JSON Schema; `markdown` and `html` render pages from records, the
command line and commented run files render single fields. Nothing is typed twice, and nothing here
imports torch.
"""
