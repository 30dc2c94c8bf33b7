"""Compiles one network for one target, runs it on rows that did not calibrate it, and compares it with float."""

from __future__ import annotations

import math
import resource
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.zoo.network import Figures, Loaded, Network, Outputs, Row
from torch import Tensor

import micronpu

NEAR = 0.99
"""Share of float's metric that a good program reaches."""
PEER = "peer"
"""The target that is no chip: ExecuTorch's XNNPACK quantizer in torch."""


def tensors(y: Any) -> list[Tensor]:
    """The tensors of nested results, in order."""
    if isinstance(y, Tensor):
        return [y]
    return [t for v in (y.values() if isinstance(y, dict) else y) for t in tensors(v)]


@torch.no_grad()
def outputs(network: Network, rows: list[Any], call: Callable[..., Any], reset: Callable[[], object]) -> Outputs:
    """The outputs of every call, in order; `reset` is called before each recording of a streaming network."""
    out = []
    for recording in rows if network.streaming else [[x] for x in rows]:
        if network.streaming:
            reset()
        out += [[t.detach().clone() for t in tensors(call(*x))] for x in recording]
    return out


def float_outputs(network: Network, loaded: Loaded) -> Outputs:
    """Of the module, or of LiteRT in float or onnxruntime where micronpu reads the file itself."""
    if loaded.model is None:
        return (_onnxruntime if network.path.suffix == ".onnx" else _litert)(network.path, loaded.test)
    initial = {k: v.clone() for k, v in loaded.model.named_buffers()}

    def reset() -> None:
        for k, v in loaded.model.named_buffers():
            v.copy_(initial[k])

    out = outputs(network, loaded.test, loaded.model, reset)
    reset()
    return out


def _onnxruntime(path: Path, rows: list[Row]) -> Outputs:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(path, options)
    names = [i.name for i in session.get_inputs()]
    feeds = ({k: t.numpy() for k, t in zip(names, x, strict=True)} for x in rows)
    return [[torch.from_numpy(np.array(y)) for y in session.run(None, feed)] for feed in feeds]


def _litert(path: Path, rows: list[Row]) -> Outputs:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=in_float(path.read_bytes()), num_threads=1)
    interpreter.allocate_tensors()
    inputs, results = interpreter.get_input_details(), interpreter.get_output_details()
    out = []
    for x in rows:
        for detail, t in zip(inputs, x, strict=True):
            interpreter.set_tensor(detail["index"], t.numpy())
        interpreter.invoke()
        out.append([torch.from_numpy(interpreter.get_tensor(d["index"]).copy()) for d in results])
    return out


def in_float(content: bytes) -> bytes:
    """A .tflite file of float activations with its integer weights as the floats that they stand for.

    LiteRT's kernels would quantize the activations of each call to int8, to multiply them with such weights.
    """
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    kinds, floats = schema.TensorType, schema.TensorType.FLOAT32
    model = schema.ModelT.InitFromPackedBuf(content, 0)
    every, read = [t for graph in model.subgraphs for t in graph.tensors], set[int]()
    codes = [max(c.builtinCode, c.deprecatedBuiltinCode) for c in model.operatorCodes]
    for graph in model.subgraphs:
        makers = [o for o in graph.operators if codes[o.opcodeIndex] == schema.BuiltinOperator.DEQUANTIZE]
        read |= {id(graph.tensors[i]) for o in makers for i in o.inputs}  # what these make of integers is float already
    stored = {id(t) for t in every if model.buffers[t.buffer].data is not None}
    is_float = all(t.type == floats for t in every if id(t) not in stored)
    own = (t for t in every if t.type in (kinds.INT8, kinds.UINT8) and id(t) in stored - read)
    weights = [t for t in own if is_float and t.quantization is not None and t.quantization.scale is not None]
    if not weights:
        return content
    for t in weights:
        q, data = t.quantization, np.asarray(model.buffers[t.buffer].data, np.uint8)
        # Older converters wrote int8 as uint8, which has another zero point.
        is_signed = t.type == kinds.INT8 or not np.any(q.zeroPoint)
        shape = [1] * len(t.shape)
        shape[q.quantizedDimension] = -1
        scale, zero = (np.reshape(v, shape if np.size(v) > 1 else ()) for v in (q.scale, q.zeroPoint))
        values = (data.view(np.int8) if is_signed else data).reshape(t.shape)
        found = ((values.astype(np.float32) - zero) * scale).astype(np.float32)
        model.buffers.append(schema.BufferT())
        model.buffers[-1].data = np.frombuffer(found.tobytes(), np.uint8)
        t.type, t.buffer, t.quantization = floats, len(model.buffers) - 1, None
    builder = flatbuffers.Builder(len(content))
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def decibels(reference: Outputs, got: Outputs) -> list[float | None]:
    """Signal to quantization noise over all calls for each output, in dB; None where it is not finite."""
    found = []
    for k in range(len(reference[0])):
        signal = sum(float((r[k].double() ** 2).sum()) for r in reference)
        noise = sum(float(((r[k].double() - g[k].double()) ** 2).sum()) for r, g in zip(reference, got, strict=True))
        usable = signal > 0 and noise > 0 and math.isfinite(noise)
        found.append(round(10 * math.log10(signal / noise), 1) if usable else None)
    return found


def reported(report: Any) -> Figures | None:
    """What the report says of the accuracy of each output: figure and interval of 95 %, in dB."""
    accuracy = report["accuracy"]
    if not accuracy:
        return None
    each = [(o["float"] or {}) for o in accuracy["outputs"]]
    return {
        "outputs": [[_rounded(v) for v in (o.get("sqnr"), *(o.get("interval") or ()))] for o in each],
        "held_out": accuracy["held_out"],
        "calibrated": accuracy["calibrated"],
    }


def _rounded(value: float | None) -> float | None:
    return round(value, 1) if value is not None and math.isfinite(value) else None


def _cpu() -> float:
    found = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in found)


def run(name: str, network: Network, target: str, precision: str) -> Figures:
    """The figures of one network for one target.

    Args:
        target: of micronpu, or "peer".
        precision: "default", or what `quantization=` takes.

    Returns:
        Among others `dB`, one figure for each output over all test calls; `float` and `metric`, the task's figure
        before and after; `good`, whether that is within 1 % of float's; `cpu_s`, of the compilation; `error`, where
        something raised.
    """
    row: Figures = {"network": name, "target": target, "precision": precision}
    started = _cpu()
    try:
        loaded = network.load(network.path)
        reference = float_outputs(network, loaded)
        row |= {"rows": len(reference)}
        started = _cpu()
        got = _peer(network, loaded) if target == PEER else _compiled(network, loaded, target, precision, row)
        row.setdefault("cpu_s", round(_cpu() - started, 1))
        row["dB"] = decibels(reference, got)
        before, after = loaded.task(reference, reference), loaded.task(reference, got)
        row |= {"float": before[network.metric], "metric": after[network.metric], "task": after}
        row["good"] = bool(row["metric"] >= NEAR * row["float"])
    except Exception as e:  # whatever a network raises is a row of the table
        row.setdefault("cpu_s", round(_cpu() - started, 1))
        row["error"] = f"{type(e).__name__}: {e}".splitlines()[0][:300]
        if not type(e).__module__.startswith("micronpu"):
            row["trace"] = traceback.format_exc().splitlines()[-3:]
    return row


def _compiled(network: Network, loaded: Loaded, target: str, precision: str, row: Figures) -> Outputs:
    example = loaded.calibration[0][0] if network.streaming else loaded.calibration[0]
    chosen = {} if precision == "default" else {"quantization": precision}
    model = str(network.path) if loaded.model is None else loaded.model
    started = _cpu()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = micronpu.compile(model, tuple(example), target, calibration=loaded.calibration, **chosen)
    row["cpu_s"] = round(_cpu() - started, 1)
    report = program.report.to_dict()
    row |= {
        "on_npu": report["delegated"],
        "operators": report["operators"],
        "ms": round(sum(x["milliseconds"] for x in report["latency"]), 3),
        "flash": report["memory"]["flash"],
        "sram": report["memory"]["sram"],
        "report": reported(report),
        "warnings": [f"{w.level} {w.rule}" for w in program.report.warnings],
    }
    return outputs(network, loaded.test, program.run, program.reset)


def _peer(network: Network, loaded: Loaded) -> Outputs:
    from benchmarks.zoo import peer

    return peer.run(network, loaded)
