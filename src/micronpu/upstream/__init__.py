"""The only room that knows private or deprecated names of torch, torchao and ExecuTorch.

Each is a `Door`: its name, what it is for, its signature where it is called, and a sentence where the installed version
does not have it.  The rest of the package comes in through the functions of `torch`, `torchao` and `executorch`, and
names the fields of a `.pte` by `pte`.  A test walks the syntax trees of all other rooms; `micronpu doctor --upstream`
lists the doors with their state.
"""
