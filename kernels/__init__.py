"""Functions on tensors: a plain reference first, faster backends beside it.

Nothing here knows of modules, parameters or training. Each outside kernel library has one file.
"""
