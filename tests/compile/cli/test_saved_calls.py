"""What a saved program may call: no operator whose kernel believes an index or a size that the file gives."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import mmap
import os
import random
import re
import resource
import signal
import struct
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

from micronpu.base.errors import ModelError
from micronpu.cli.archive_calls import RefusedContentError, admitted, call, check_operator, without_data
from micronpu.cli.files import load_model
from micronpu.ir.lowering import LOWERINGS
from micronpu.upstream.torch import OpOverload, schema_of

ATEN = torch.ops.aten
SPACE = 2 << 30
"""Bytes of memory that a call may ask for."""


def overloads() -> Iterator[OpOverload]:
    """Every overload of `torch.ops.aten` that takes a tensor."""
    for name in sorted({schema.name for schema in torch._C._jit_get_all_schemas() if schema.name.startswith("aten::")}):
        packet = getattr(ATEN, name.removeprefix("aten::"), None)
        for overload in packet.overloads() if packet is not None else ():
            found = getattr(packet, overload)
            if any("Tensor" in str(a.type) for a in schema_of(found).arguments):
                yield found


def name_of(overload: OpOverload) -> str:
    return str(overload).removeprefix("aten.")


# ---------------------------------------------------------------- the list

NEVER = re.compile(
    r"backward|_out$|\.out|sparse|nested|jagged|_print|save|from_file|ctc_loss|segment_reduce|unpool|embedding_bag|fbgemm"
    r"|quantized_|int8pack|choose_qparams|prune|lu_(?:solve|factor|unpack)|ldl|_eig|orgqr|ormqr|sobol|_batch_dim|set_|resize|pin_memory"
    r"|multilabel|nll_loss|fused_moving|histogram|histc|bincount|packed|_data\b|\.data$|record_stream|manual_seed"
    r"|cudnn_(?!batch_norm\.)|miopen|mkldnn|mps|cuda|cslt|_foreach|_fused_ad|_amp_|_nccl|_test_|_assert_async"
)


def test_operators_that_believe_their_operands_are_not_admitted():
    unsafe = {name for name in admitted() if "unsafe" in name}
    assert unsafe == {n for n in LOWERINGS if "unsafe" in n}  # views, and nothing that is indexed
    assert not any("index" in name for name in unsafe)
    assert not {name for name in admitted() if NEVER.search(name)}
    assert len(admitted()) > 600


def test_only_the_first_operand_is_ever_written():
    for name in admitted():
        packet, _, overload = name.partition(".")
        arguments = schema_of(getattr(getattr(ATEN, packet), overload)).arguments if hasattr(ATEN, packet) else ()
        assert not any(a.alias_info is not None and a.alias_info.is_write for a in arguments[1:]), name
        assert not any(a.is_out for a in arguments), name


@pytest.mark.parametrize(
    "target",
    [
        "torch.ops.quantized.linear.default",
        "torch.ops.sparse.qlinear.default",
        "torch.ops.mkldnn._linear_pointwise.default",
        "torch.ops.prims.as_strided_scatter.default",
        "torch.ops.prim.device.default",
        "torch.ops.rngprims.philox_rand.default",
        "torch.ops.inductor._alloc_from_pool.default",
        "torch.ops._c10d_functional.all_reduce.default",
        "torch.ops.profiler._record_function_enter_new.default",
        "torch.ops.fsdp.copy_.default",
        "torch.ops.torchvision.nms.default",
        "torch.ops.executorch.prim.default",
        "torch.ops.torchao.marlin_qqq_gemm.default",
        "torch.ops.quantized_decomposed.mixed_mm.default",
        "torch.ops.higher_order.associative_scan",
        "torch.ops.higher_order.triton_kernel_wrapper_functional",
        "torch.ops.higher_order.run_const_graph",
        "torch.ops.higher_order.flex_attention",
        "torch.ops.higher_order.auto_functionalized",
        "torch.ops.higher_order.print",
        "torch.ops.aten",
        "torch.ops.aten.relu.default.__self__",
        "torch.ops.aten.relu.nothing",
        "_operator.setitem",
        "_operator.itemgetter",
        "builtins.getattr",
        "torch._C._jit_clear_class_registry",
    ],
)
def test_other_calls_are_refused_by_their_name(target):
    with pytest.raises(RefusedContentError, match="none of the operators"):
        check_operator(target)


# ---------------------------------------------------------------- calls with operands that lead astray

SHAPES = ((4,), (2, 3), (1, 2, 4, 4), (1, 2, 4), (1, 2, 4, 4, 4), (), (0,), (1, 1))
FAR = (10**9, -(10**9), 1 << 40, -1, 0, 1, 2, 3)
INDEX = re.compile(r"ind|offset|length|target|repeats|crow|col_|batch_sizes|pivots|bins|source|mask")


def takes_an_index(overload: OpOverload) -> bool:
    arguments = schema_of(overload).arguments
    return any("Tensor" in str(a.type) and INDEX.search(a.name) for a in arguments)


def _tensor(rng: random.Random, shape: Sequence[int], index: bool) -> torch.Tensor:
    kind = rng.random()
    if kind < (0.85 if index else 0.15):
        far = rng.random() < 0.5
        values = [rng.choice(FAR if far else (0, 1)) for _ in range(torch.Size(shape).numel())]
        return torch.tensor(values, dtype=torch.int64).reshape(shape)
    return torch.rand(shape) > 0.5 if kind > 0.95 else torch.full(shape, rng.choice((0.5, 1.0, float("nan"), 1e30)))


def _value(rng: random.Random, kind: str, name: str, shape: Sequence[int]) -> Any:
    if kind.startswith("Optional["):
        return None if rng.random() < 0.5 else _value(rng, kind[9:-1], name, shape)
    if kind == "List[Optional[Tensor]]":
        return [_tensor(rng, rng.choice(((2,), shape)), index=True) for _ in range(rng.randint(1, 3))]
    choices: dict[str, Callable[[], Any]] = {
        "Tensor": lambda: _tensor(
            rng, shape if rng.random() < 0.75 else rng.choice(SHAPES), INDEX.search(name) is not None
        ),
        "List[Tensor]": lambda: [_tensor(rng, shape, False) for _ in range(rng.randint(1, 4))],
        "int": lambda: rng.choice(FAR),
        "float": lambda: rng.choice((0.5, 1.0, 0.0, -1.0, float("nan"), float("inf"))),
        "number": lambda: rng.choice((0.5, 1, 2, 0, -1)),
        "bool": lambda: rng.random() < 0.5,
        "List[int]": lambda: [
            rng.choice(FAR if rng.random() < 0.2 else (1, 1, 2, 0)) for _ in range(rng.randint(1, len(shape) or 1))
        ],
        "List[float]": lambda: [1.0, 2.0],
        "List[bool]": lambda: [True, False, True],
        "str": lambda: rng.choice(("mean", "reflect", "tanh", "ij", "i,j->ij")),
        "ScalarType": lambda: rng.choice((torch.float32, torch.int64, torch.bool)),
        "MemoryFormat": lambda: rng.choice((torch.contiguous_format, torch.channels_last)),
    }
    return choices.get(kind, lambda: None)()


def _operands(rng: random.Random, overload: OpOverload) -> tuple[list[Any], dict[str, Any]]:
    shape = rng.choice(SHAPES)
    args, kwargs = [], {}
    for argument in schema_of(overload).arguments:
        if argument.has_default_value() and rng.random() < 0.3:
            break
        value = _value(rng, str(argument.real_type), argument.name, shape)
        if argument.kwarg_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    return args, kwargs


def _fake(value: Any) -> Any:
    return [_fake(v) for v in value] if isinstance(value, list) else without_data(value)


def _guarded(overload: OpOverload, args: list[Any], kwargs: dict[str, Any]) -> None:
    """As the reader of archives does it before anything is computed."""
    with FakeTensorMode():
        result = call(overload, _fake(args), {name: _fake(value) for name, value in kwargs.items()})
    results = result if isinstance(result, (tuple, list)) else (result,)
    if any(isinstance(r, torch.Tensor) and r.numel() > 1 << 20 for r in results):
        raise RefusedContentError("large")


def ended(overloads: Sequence[OpOverload], calls: int, guarded: bool) -> tuple[list[str], int]:
    """Calls each overload in a process of its own.

    Returns:
        The overloads that ended it, and how many calls gave a result.
    """
    place = mmap.mmap(-1, 16)
    found, start = [], 0
    place[:] = struct.pack("qq", 0, 0)
    while start < len(overloads):
        pid = os.fork()
        if not pid:
            with contextlib.suppress(BaseException):
                _call_all(overloads, start, calls, guarded, place)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        at, good = struct.unpack("qq", place[:])
        if not os.WIFSIGNALED(status):
            break
        at = min(at, len(overloads) - 1)  # it may also end after the last call
        found.append(f"{overloads[at]}: {signal.Signals(os.WTERMSIG(status)).name}")
        start = at + 1
    return found, good


def _call_all(overloads: Sequence[OpOverload], start: int, calls: int, guarded: bool, place: mmap.mmap) -> None:
    torch.set_num_threads(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    faulthandler.disable()  # pytest lets it write to a copy of stderr
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + SPACE,) * 2)
    good = struct.unpack("qq", place[:])[1]
    for position in range(start, len(overloads)):
        overload = overloads[position]
        rng = random.Random(str(overload))
        place[:] = struct.pack("qq", position, good)
        for _ in range(calls):
            args, kwargs = _operands(rng, overload)
            with contextlib.suppress(Exception), torch.no_grad():
                if guarded:
                    _guarded(overload, args, kwargs)
                overload(*args, **kwargs)
                good += 1
    place[:] = struct.pack("qq", len(overloads), good)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="how much memory a process has is asked of Linux")
def test_no_index_leads_an_admitted_operator_astray():
    """All overloads that take an index are tried; those that are not admitted are refused, whatever they do."""
    taking = [o for o in overloads() if takes_an_index(o)]
    tried = [o for o in taking if name_of(o) in admitted()]
    assert len(taking) > 300 and len(tried) > 40
    for overload in taking:
        if overload not in tried:
            with pytest.raises(RefusedContentError):
                check_operator(f"torch.ops.{overload}")
    astray, good = ended(tried, 200, guarded=False)
    assert not astray
    assert good > 300


def test_sizes_that_kernels_believe_are_looked_at_before():
    believing = [ATEN._native_batch_norm_legit.no_stats, ATEN._weight_norm_interface.default, ATEN._fft_r2c.default]
    assert len(ended(believing, 30, guarded=False)[0]) > 1
    assert not ended(believing, 30, guarded=True)[0]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="how much memory a process has is asked of Linux")
def test_no_operand_leads_an_admitted_operator_astray():
    """Kernels of normalization and of transforms believe sizes; computing without data does not."""
    tried = [o for o in overloads() if name_of(o) in admitted()]
    assert len(tried) > 600
    astray, good = ended(tried, 5, guarded=True)
    assert not astray
    assert good > 100


# ---------------------------------------------------------------- whole files

RECORD = "models/model.json"


class Calls(nn.Module):
    """A convolution, and beside it a call with buffers from the file."""

    def __init__(self, made: Callable[..., torch.Tensor], *buffers: torch.Tensor) -> None:
        super().__init__()
        self.layer = nn.Conv2d(1, 1, 3, padding=1)
        self.made = made
        for position, buffer in enumerate(buffers):
            self.register_buffer(f"b{position}", buffer)

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x) + self.made(x, *self.buffers()).sum()


def saved(path: Path, made: Callable[..., torch.Tensor], *buffers: torch.Tensor) -> Path:
    torch.export.save(torch.export.export(Calls(made, *buffers).eval(), (torch.ones(1, 1, 4, 4),)), path)
    return path


def edited(path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """The archive with its graph changed, in place."""
    with zipfile.ZipFile(path) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in records.items():
            if name.endswith(RECORD):
                content = json.loads(data)
                change(content["graph_module"]["graph"])
                data = json.dumps(content).encode()
            archive.writestr(name, data)
    return path


far = torch.full((1, 1, 2, 2), 10**9)
CALLS: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "gradient of a pool": (
        lambda x, i, g: ATEN.max_pool2d_with_indices_backward(g, x, [2, 2], [2, 2], [0, 0], [1, 1], False, i),
        (far, torch.ones(1, 1, 2, 2)),
    ),
    "gradient of an adaptive pool": (
        lambda x, i, g: ATEN.adaptive_max_pool2d_backward(g, x, i),
        (far, torch.ones(1, 1, 2, 2)),
    ),
    "gradient of an embedding": (
        lambda x, i: ATEN.embedding_dense_backward(x.reshape(4, 4), i, 4, -1, False),
        (torch.full((4,), 10**9),),
    ),
    "gradient of a norm": (
        lambda x, m: ATEN.native_batch_norm_backward(x, x, None, m, m, m, m, True, 1e-5, [True, True, True])[0],
        (torch.ones(1),),
    ),
    "unpooling": (lambda x, i: ATEN.max_unpool2d(x[:, :, :2, :2], i, [4, 4]), (far,)),
    "unchecked index": (lambda x, i: ATEN._unsafe_index.Tensor(x, [None, None, i]), (torch.tensor([10**9]),)),
    "bag of rows": (
        lambda x, i: ATEN._embedding_bag(x.reshape(4, 4), i, torch.zeros(1, dtype=torch.int64))[0],
        (torch.tensor([0, 10**9]),),
    ),
    "pivots": (
        lambda x, p: ATEN.linalg_ldl_solve(x[0, 0], p, torch.ones(4, 1)),
        (torch.tensor([10**9, 2, 3, 4], dtype=torch.int32),),
    ),
    "packed weights": (
        lambda x, w: ATEN._weight_int8pack_mm(x[0, 0].to(torch.bfloat16), w, torch.ones(8, dtype=torch.bfloat16)),
        (torch.ones(8, 4, dtype=torch.int8),),
    ),
    "observer": (
        lambda x, n, f: ATEN.fused_moving_avg_obs_fake_quant(x, n, n, f, f, f, n.int(), 0.1, 0, 255, 0, False, False),
        (torch.ones(1, dtype=torch.int64), torch.ones(1)),
    ),
    "storage": (lambda x: ATEN.resize_(x.clone(), [1, 1, 4, 4]), ()),
    "count of classes": (lambda x, i: ATEN.bincount(i, None, 4), (torch.tensor([1]),)),
    "histogram": (lambda x: ATEN.histc(x), ()),
    "eigenvalues": (lambda x: ATEN.linalg_eigvals(x[0, 0]).real, ()),
}


@pytest.mark.sweep
@pytest.mark.parametrize("case", CALLS)
def test_a_file_that_calls_what_believes_its_operands_is_refused(tmp_path, case):
    made, buffers = CALLS[case]
    path = saved(tmp_path / "a.pt2", made, *buffers)
    with pytest.raises(ModelError, match=r"is not loaded, because it holds a call of .*none of the operators"):
        load_model(str(path))


NORM = (torch.ones(1), torch.zeros(1), torch.ones(1))
LARGE = 1 << 33


def _norm(x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return ATEN._native_batch_norm_legit_no_training(x, scale, None, mean, variance, 0.1, 1e-5)[0]


def _given(graph: dict[str, Any], operator: str, argument: str) -> dict[str, Any]:
    """An argument of the first call of an operator; the last one is taken where it is not given."""
    node = next(n for n in graph["nodes"] if f".{operator}." in n["target"])
    found = [a for a in node["inputs"] if a["name"] == argument]
    if not found:
        found = [{"name": argument, "arg": {}, "kind": 2}]
        node["inputs"] += found
    return found[0]


def _argument(operator: str, argument: str, value: dict[str, Any]) -> Callable[[dict[str, Any]], None]:
    return lambda graph: _given(graph, operator, argument).update(arg=value)


def _claim(name: str, *sizes: int, **more: Any) -> Callable[[dict[str, Any]], None]:
    def change(graph: dict[str, Any]) -> None:
        meta = next(value for key, value in graph["tensor_values"].items() if key.startswith(name))
        meta.update(sizes=[{"as_int": n} for n in sizes], strides=[{"as_int": 1} for _ in sizes], **more)

    return change


def _ints(*values: int) -> dict[str, Any]:
    return {"as_ints": list(values)}


EDITS: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...], Callable[[Any], None], str]] = {
    "memory order by number": (
        lambda x: x.clone(memory_format=torch.contiguous_format),
        (),
        _argument("clone", "memory_format", {"as_int": 77}),
        "'77' as its MemoryFormat",
    ),
    "layout by number": (torch.zeros_like, (), _argument("zeros_like", "layout", {"as_int": 9}), "'9' as its Layout"),
    "sparse layout": (
        torch.zeros_like,
        (),
        _argument("zeros_like", "layout", {"as_layout": 1}),
        "'torch.sparse_coo' as its Layout",
    ),
    "type by number": (
        lambda x: torch.zeros_like(x, dtype=torch.float64),
        (),
        _argument("zeros_like", "dtype", {"as_int": 44}),
        "'44' as its ScalarType",
    ),
    "device": (
        torch.zeros_like,
        (),
        _argument("zeros_like", "device", {"as_device": {"type": "meta", "index": None}}),
        "'meta' as its Device",
    ),
    "axes of a transform": (
        lambda x: torch.view_as_real(ATEN._fft_r2c(x, [3], 0, True)),
        (),
        _argument("_fft_r2c", "dim", _ints(-(10**9))),
        "does not take its operands",
    ),
    "too many ones": (
        lambda x: torch.ones([4, 4]),
        (),
        _argument("ones", "size", _ints(LARGE)),
        rf"of the shape \[{LARGE}\]; one value may have",
    ),
    "large, and said to be small": (
        lambda x: torch.full([4, 4], 0.5),
        (),
        _argument("full", "size", _ints(4, 4, 4)),
        r"is float32\[4, 4, 4\], and float32\[4, 4\] by what the file says",
    ),
    "repeated": (
        lambda x: x.repeat(1, 2, 1, 1),
        (),
        _argument("repeat", "repeats", _ints(1, 1 << 30, 1, 1)),
        "one value may have",
    ),
    "padded": (
        lambda x: nn.functional.pad(x, [1, 1]),
        (),
        _argument("pad", "pad", _ints(1 << 40, 1)),
        "one value may have",
    ),
    "window of another size": (
        lambda x: x.as_strided([2, 2], [1, 1]),
        (),
        _argument("as_strided", "size", _ints(1 << 20, 2)),
        "does not take its operands|is float32",
    ),
    "view of more than there is": (
        lambda x: x.reshape(16),
        (),
        _argument("reshape", "shape", _ints(64)),
        "does not take its operands",
    ),
    "input of another shape": (torch.relu, (), _claim("x", 1, 1, 400, 400), "and float32.*by what the file says"),
    "buffer of another shape": (
        lambda x, b: x * b,
        (torch.ones(4),),
        _claim("b_b0", 4000),
        r"is float32\[4\], and float32\[4000\]",
    ),
    "weights of another shape": (torch.relu, (), _claim("p_layer_weight", 64, 1, 3, 3), r"by what the file says"),
    "buffer of another type": (
        lambda x, b: x * b,
        (torch.ones(4),),
        _claim("b_b0", 4, dtype=5),
        r"is float32\[4\], and int64\[4\]",
    ),
    "result of another shape": (torch.relu, (), _claim("relu", 9, 9), r"and float32\[9, 9\] by what"),
    "an operand that is no tensor": (
        lambda x, b: ATEN.index_select(x, 3, b),
        (torch.zeros(1, dtype=torch.int64),),
        _argument("index_select", "index", {"as_int": 10**9}),
        "does not take its operands",
    ),
}


@pytest.mark.sweep
@pytest.mark.parametrize("case", EDITS)
def test_a_file_that_says_another_thing_than_it_holds_is_refused(tmp_path, case):
    made, buffers, change, sentence = EDITS[case]
    path = saved(tmp_path / "a.pt2", made, *buffers)
    load_model(str(path))
    with pytest.raises(ModelError, match=f"is not loaded, because it holds .*(?:{sentence})"):
        load_model(str(edited(path, change)))


class Usual(nn.Module):
    """What models have beside convolutions: as the importer knows it, and as torch takes it apart."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(10, 16)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.memory = nn.LSTM(16, 8, batch_first=True)
        self.dense = nn.utils.parametrizations.weight_norm(nn.Linear(8, 4))
        self.register_buffer("state", torch.zeros(1, 4))

    def forward(self, i: torch.Tensor) -> Any:
        x = self.rows(i)
        y = self.dense(self.memory(self.block(x))[0])[:, -1]
        self.state.copy_(self.state + y)
        spectrum = torch.stft(x[..., 0], 4, 2, 4, window=torch.hann_window(4), return_complex=True).abs()
        large = nn.functional.interpolate(x[None], scale_factor=2, mode="bilinear")
        numbers = torch.linspace(0, 1, 4) * y + torch.arange(4) + torch.eye(4)[0]
        return self.state * 2, spectrum, large, numbers, y.norm(dim=-1), torch.topk(y, 2).values, y.sort().values


@pytest.mark.sweep
def test_usual_models_are_read(tmp_path):
    program = torch.export.export(Usual().eval(), (torch.zeros(1, 8, dtype=torch.int64),))
    for name, form in (("a.pt2", program), ("core.pt2", program.run_decompositions())):
        torch.export.save(form, tmp_path / name)
        load_model(str(tmp_path / name))


class Branches(nn.Module):
    """Control flow of every kind that is admitted."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.cond(x.sum() > 0, lambda v: v.relu() * 2, lambda v: v - 1, (x,))
        (count, z) = torch.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, v.sin()), (torch.zeros(()).int(), y))
        with torch.enable_grad():
            w = z.exp()
        return w + count


def test_control_flow_is_looked_into(tmp_path):
    path = tmp_path / "a.pt2"
    with torch.no_grad():
        torch.export.save(torch.export.export(Branches(), (torch.ones(2, 3),)), path)
    load_model(str(path))

    def change(graph: dict[str, Any]) -> None:
        branch = next(
            a["arg"]["as_graph"]["graph"] for n in graph["nodes"] for a in n["inputs"] if "as_graph" in a["arg"]
        )
        branch["nodes"][0]["target"] = "torch.ops.aten.unsqueeze.default"
        branch["nodes"][0]["inputs"].append({"name": "dim", "arg": {"as_int": 0}, "kind": 1})

    with pytest.raises(ModelError, match="is not loaded, because it holds the value `relu` is float32"):
        load_model(str(edited(path, change)))
