"""Option spellings of the previous minor version, which are rewritten with a notice."""

from __future__ import annotations

from collections.abc import Collection, Sequence

OPTIONS = {
    "--activations": "--quantization ",
    "--max-slowdown": "--quantization max_slowdown=",
    "--activation-observer": "--quantization activation_observer=",
    "--percentile": "--quantization percentile=",
    "--input-observer": "--quantization input_observer=",
    "--weight-observer": "--quantization weight_observer=",
    "--per-tensor": "--quantization per_channel=false",
    "--equalize": "--quantization equalize",
    "--bias-correction": "--quantization bias_correction",
    "--adaptive-rounding": "--quantization adaptive_rounding",
    "--fit-ranges": "--quantization fit_ranges",
    "--projections": "--quantization projections",
    "--max-ms": "--budget ms=",
    "--max-sram": "--budget sram=",
    "--max-flash": "--budget flash=",
    "--min-sqnr": "--budget sqnr=",
    "--min-agreement": "--budget top1=",
    "--min-accuracy": "--budget accuracy=",
    "--eval-data": "--data ",
    "--sparsity": "--sparse ",
    "--max-loss": "--sparse max_loss=",
    "--max-cycles": "--sparse max_cycles=",
    "--fix-output": "--output ",
}
"""New spelling by the old one; a value follows if it ends with "=" or a space."""
COMMANDS = {"eval": "evaluate"}
LAST = "0.2"
"""Last minor version that accepts them."""


def rewritten_command(name: str, arguments: Sequence[str]) -> tuple[str, list[str], str]:
    """Return the command and the arguments in the new spelling, and the notice; "" if nothing changed."""
    now, left = COMMANDS.get(name, name), list(arguments)
    if name == "blame" and "--fix" in left:
        now = "fix"
        left.remove("--fix")
    return now, left, _notice([(f"{name} --fix" if now == "fix" != name else name, now)] if now != name else [])


def rewritten_options(arguments: Sequence[str], own: Collection[str]) -> tuple[list[str], str]:
    """Return the arguments in the new spelling, and the notice.

    Args:
        own: flags of the command. They are never rewritten, and a new spelling must be one of them.
    """
    result: list[str] = []
    changed: list[tuple[str, str]] = []
    rest = iter(arguments)
    for argument in rest:
        if argument == "--":
            result += [argument, *rest]
            break
        flag, equals, value = argument.partition("=")
        now = OPTIONS.get(flag, "")
        new, _, item = now.partition(" ")
        if flag in own or new not in own:
            result.append(argument)
            continue
        if now.endswith(("=", " ")):
            item += value if equals else next(rest, "")
        result += [new, item]
        changed.append((flag, f"{new} {item}"))
    return result, _notice(changed)


def _notice(changed: Sequence[tuple[str, str]]) -> str:
    if not changed:
        return ""
    pairs = "; ".join(f"{old} is now `{now}`" for old, now in changed)
    return f"Note: {pairs}. Version {LAST} is the last to take the old spelling."
