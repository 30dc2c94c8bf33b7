"""The peer: ExecuTorch's own Neutron flow (`executorch.backends.nxp`) on a network, in a process of its own.

    python -m benchmarks.peers.nxp dscnn resnet8 chain100

The peers folder is the one that MICRONPU_PEERS names, or else `../shared/peers` beside the repository. It holds a
stand-in for NXP's closed SDK, which converts nothing: the time in `converter` says nothing about the real one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.peers.child import ChildError, json_row


def peer_script() -> Path:
    """The script that runs the peer.

    Raises:
        ChildError: there is none.
    """
    folder = Path(os.environ.get("MICRONPU_PEERS") or Path(__file__).resolve().parents[3] / "shared" / "peers")
    script = folder.resolve() / "nxp" / "run_upstream.py"
    if not script.is_file():
        raise ChildError(f"The NXP peer is not at {script}. Try: set MICRONPU_PEERS to the folder that holds nxp/.")
    return script


def measure(
    model: str, *, samples: int = 4, channels_last: bool = False, pte: Path | None = None, time_limit: float = 900.0
) -> dict[str, Any]:
    """Runs the peer on one network of its `models.py` (or `chainN`: N convolution blocks) for i.MX RT700.

    Args:
        model: a name such as "dscnn"; the weights are random with a fixed seed.
        samples: how many random calibration inputs.
        channels_last: whether model and input are in that memory format.
        pte: where to keep the program.
        time_limit: seconds; after them the peer and all that it started are ended.

    Returns:
        The peer's row: node and partition counts, `seconds` per stage and in `total` (without `import`),
        `peak_rss_mib`, `pte_bytes`.

    Raises:
        ChildError: the peer is missing, fails, prints no row, or exceeds the time limit.
    """
    command = [sys.executable, str(peer_script()), model, "--samples", str(samples)]
    if channels_last:
        command.append("--channels-last")
    if pte is not None:
        command += ["--pte", str(pte.resolve())]
    return json_row(command, f"The NXP peer on {model!r}", time_limit=time_limit)


def main() -> None:
    """Command line: one JSON line per network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--time-limit", type=float, default=900.0, metavar="SECONDS")
    options = parser.parse_args()
    given = {"samples": options.samples, "channels_last": options.channels_last, "time_limit": options.time_limit}
    try:
        for model in options.models:
            print(json.dumps(measure(model, **given)), flush=True)
    except ChildError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
