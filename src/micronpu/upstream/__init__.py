"""The only package that uses private or deprecated names of torch, torchao and ExecuTorch.

Each is a `Shim`: its name, its purpose, its signature if it is called, and an error for versions that lack it.  Other
packages call the functions of `torch`, `torchao` and `executorch`, and take the fields of a `.pte` from `pte`.  A test
checks the syntax trees of all other packages; `micronpu doctor --upstream` lists these names with their state.
"""
