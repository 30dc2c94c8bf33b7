"""Trained networks that registry packages ship, compiled and judged on real data: `make zoo`, docs/zoo.md.

`packages` names what is fetched, `networks` holds one module for each network, `data` reads the rows, `judge`
compiles and compares, `peer` does the same with ExecuTorch's XNNPACK quantizer, `tables` writes the page. Nothing
fetched is committed.
"""
