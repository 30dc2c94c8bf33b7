"""`micronpu.sparsify`: 2:4 sparsity from a trained network and unlabelled inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.fx import GraphModule

from micronpu.base.arguments import described, moved, renamed
from micronpu.base.errors import ModelError, OptionError, first_line
from micronpu.frontend.checks import check_callback, check_evaluation_mode
from micronpu.frontend.export import as_inputs
from micronpu.frontend.exported import Exported, exported, exported_for_any_batch
from micronpu.frontend.states import states_of
from micronpu.partition.device import Device
from micronpu.quantize.data import calibration_calls
from micronpu.quantize.quantization import HowToQuantize, Quantization
from micronpu.quantize.quantizer import StaticQuantizer
from micronpu.report.sparsity import SparsityReport
from micronpu.targets.options import Options
from micronpu.targets.registry import device_for, target_required
from micronpu.transforms.sparsity.compress import check_compress, compressed, with_bits
from micronpu.transforms.sparsity.corrected import with_corrections
from micronpu.transforms.sparsity.judge import Score
from micronpu.transforms.sparsity.network import FloatNetwork, Row
from micronpu.transforms.sparsity.options import SparsityOptions, sparsity_options
from micronpu.transforms.sparsity.search import ProgressCallback, Sparsified, as_callback, sparsified
from micronpu.upstream.session import exclusive


@renamed(listener="callback")
@moved(
    max_loss="sparsity=SparsityOptions(max_loss=0.01)",
    max_cycles="sparsity=SparsityOptions(max_cycles=0.7)",
    quantizer="quantization=quantizer",
)
@target_required
@exclusive()
def sparsify(
    model: nn.Module | ExportedProgram,
    calibration: Any,
    target: str,
    *,
    example_inputs: Sequence[Any] | Tensor | None = None,
    sparsity: SparsityOptions | None = None,
    score: Score | None = None,
    quantization: HowToQuantize = None,
    options: Options | None = None,
    callback: ProgressCallback | None = None,
) -> Sparsified:
    """Make two of every four weights zero if the target computes such layers in half the cycles.

    Args:
        model: a trained float module in evaluation mode, or an exported program of one.
        calibration: some hundred typical inputs without labels, as for `micronpu.compile`; sequences of them for a
            model with states.
        target: see ``micronpu targets``.
        example_inputs: fix shapes and dtypes; default: the first calibration input.
        sparsity: pattern, search and limits of the loss.
        score: a measure of a network, larger is better, instead of the agreement with the float network.
        quantization, options: as for `micronpu.compile`.
        callback: progress callback; called with the name of the step and the completed fraction.

    Returns:
        The sparse network with its report. If the target gains nothing from sparsity, the network is unchanged, and the
        report states the gain in bytes.

        Raises:
            MicroNpuError: an input is invalid; the message states what, where, why and what to try.
    """
    check_callback(callback)
    if sparsity is not None and not isinstance(sparsity, SparsityOptions):
        raise OptionError(f"`sparsity` is of type {type(sparsity).__name__}.", hint="SparsityOptions(steps=1000)")
    chosen = sparsity or SparsityOptions()
    if score is not None and not callable(score):
        raise OptionError(f"`score` is of type {type(score).__name__}.", hint="score=lambda network: accuracy(network)")
    if not isinstance(target, str):
        raise OptionError(
            f"The target is {described(target)}; it is a name.", hint="sparsify(model, calibration, target, ...)"
        )
    device = device_for(target, options)
    quantizer = Quantization.of(quantization).quantizer_for(device.quantizer)
    if example_inputs is None:
        example_inputs = _first(calibration)
    examples = as_inputs(example_inputs)
    if isinstance(model, nn.Module) and not isinstance(model, GraphModule):
        check_evaluation_mode(model)
    program = exported_for_any_batch(model, examples)
    sequences = calibration_calls(calibration, examples, in_turn=bool(states_of(program)))
    network = FloatNetwork.of(program, examples, sequences)
    return sparsified(network, device, quantizer, chosen, score, callback)


class Reduced(NamedTuple):
    """A model with fewer weights or bits, its quantizer, the sparsity report, and notes."""

    model: Exported
    quantizer: StaticQuantizer
    report: SparsityReport | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sparsity:
    """Settings to make the weights of a model sparse or of fewer bits before it is compiled."""

    options: SparsityOptions | None
    device: Device
    compress: float | None = None

    @classmethod
    def of(cls, sparsity: str | SparsityOptions | None, compress: float | None, device: Device) -> Sparsity | None:
        """Return the settings for arguments of `micronpu.compile`, or None if they request nothing.

        Raises:
            OptionError: a value is invalid.
        """
        options, most = sparsity_options(sparsity), check_compress(compress)
        return None if options is None and most is None else cls(options, device, most)

    def reduced(
        self,
        model: Exported,
        sequences: Sequence[Sequence[Row]],
        quantizer: StaticQuantizer,
        progress: Callable[[float], None],
    ) -> Reduced:
        """Make weights sparse, and then reduce their bits, in a copy of the model.

        Args:
            sequences: of the calibration data, of one sample each for a model without states.
            quantizer: of the finished program; if it is for training, the search uses another one.
        """
        program = exported_for_any_batch(model.model, model.examples)
        own = self.device.quantizer() if quantizer.is_qat else quantizer
        network = FloatNetwork.of(program, model.examples, sequences)
        last, report = quantizer, None
        notes: tuple[str, ...] = ()
        if self.options is not None:
            report = sparsified(network, self.device, own, self.options, callback=as_callback(progress)).report
            own = with_corrections(own, report.point.corrections)
            last = quantizer if quantizer.is_qat else own
        if self.compress is not None:
            tries = self.options is None or self.options.corrections
            less = compressed(network, self.device, own, self.compress, progress, tries)
            last = with_bits(quantizer if quantizer.is_qat else with_corrections(own, less.corrections), less.bits)
            notes = (less.note,)
        return Reduced(exported(program, model.examples), last, report, notes)


def _first(calibration: Any) -> Any:
    if calibration is None or isinstance(calibration, dict) or not hasattr(calibration, "__getitem__"):
        raise ModelError(
            "Without `example_inputs` the calibration data is a list of inputs, the first of which fixes shapes.",
            hint="sparsify(model, calibration, example_inputs=...)",
        )
    if not len(calibration):
        raise ModelError("The calibration data is empty.", hint="pass some hundred typical inputs")
    try:
        first = calibration[0]
        tensors = [torch.as_tensor(t) for t in (first if isinstance(first, (tuple, list)) else (first,))]
    except (TypeError, ValueError, RuntimeError) as error:
        raise ModelError(
            f"The first of the calibration data is no tensor: {first_line(error)}.", hint="[x1, x2, ...]"
        ) from error
    if not all(t.numel() for t in tensors):
        raise ModelError("The first of the calibration data is an empty tensor.", hint="some hundred typical inputs")
    return tuple(tensors)
