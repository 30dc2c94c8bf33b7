"""What public calls change in the process: nothing, be it for a moment, and after an error as well."""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import os
import random
import signal
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import micronpu
from micronpu.base import quiet
from micronpu.base.errors import MicroNpuError
from micronpu.neutron import NeutronQuantizer, NeutronTargetSpec, calibrate_and_quantize
from micronpu.upstream.session import random_kept

TARGET = "cortex-m55"
X = torch.linspace(-1, 1, 24).reshape(1, 2, 3, 4)
PACKAGES = ("torch", "torchao", "executorch", "numpy")
MODULES = """
    torch torch.nn torch.nn.functional torch.nn.modules.module torch.autograd torch.overrides torch.library torch._ops
    torch._tensor torch._utils torch.export torch.export._trace torch.export.exported_program
    torch.export.graph_signature torch._export torch._export.utils torch._export.verifier torch._export.passes
    torch._subclasses torch._subclasses.fake_tensor torch._subclasses.functional_tensor
    torch._functorch.predispatch torch._functorch.vmap
    torch._dispatch.python torch._guards torch.fx torch.fx.graph torch.fx.graph_module torch.fx.node torch.fx.proxy
    torch.fx.traceback torch.fx.interpreter torch.fx._symbolic_trace torch.fx.passes.shape_prop
    torch.fx.experimental.proxy_tensor torch.fx.experimental.symbolic_shapes torch.utils._pytree
    torch.utils._python_dispatch executorch.exir executorch.exir.tensor executorch.exir.tracer executorch.exir.memory
    executorch.exir.memory_planning executorch.exir.pass_base executorch.exir.lowered_backend_module
    executorch.exir.program._program executorch.exir.passes executorch.exir.passes.spec_prop_pass
    executorch.exir.passes.replace_view_copy_with_view_pass executorch.exir.emit._emitter
    executorch.exir.backend.backend_api executorch.exir.dialects._ops
""".split()  # noqa: SIM905  (a list would have a line for each)
SIGNALS = [number for number in signal.Signals if number not in (signal.SIGKILL, signal.SIGSTOP)]
State = dict[str, Any]


def in_a_new_thread(function: Callable[[], Any]) -> Any:
    """The result of a function in a thread that begins now: its state of torch is that of the process."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def attributes(name: str) -> Iterator[tuple[str, Any]]:
    """Functions and classes of a module, and the methods of these classes.

    What torch is at, as `torch.export._trace._EXPORT_FLAGS`, are values.
    """
    for key, value in list(vars(sys.modules[name]).items()):
        if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
            yield f"{name}:{key}", id(value)
            if isinstance(value, type) and value.__module__ == name:
                for inner, method in list(vars(value).items()):
                    if callable(method):
                        yield f"{name}:{key}.{inner}", id(method)


def torch_state() -> State:
    return {
        "torch.dtype": torch.get_default_dtype(),
        "torch.device": torch.get_default_device(),
        "torch.deterministic": torch.are_deterministic_algorithms_enabled(),
        "torch.precision": torch.get_float32_matmul_precision(),
        "torch.threads": torch.get_num_threads(),
        "torch.grad": torch.is_grad_enabled(),
        "torch.inference": torch.is_inference_mode_enabled(),
        "torch.autocast": torch.is_autocast_enabled("cpu"),
        "torch.modes": torch._C._len_torch_dispatch_stack(),
        "torch.functions": torch._C._len_torch_function_stack(),
        "torch.transforms": torch._C._functorch.get_dynamic_layer_stack_depth(),
        "torch.mkldnn": torch.backends.mkldnn.enabled,
        "torch.random": torch.random.get_rng_state().numpy().tobytes(),
        "numpy.errors": np.geterr(),
    }


def state() -> State:
    """The state of the process, as the running thread sees it, but for values of the modules of torch."""
    names = [n for n in list(logging.root.manager.loggerDict) if n.partition(".")[0] in PACKAGES]
    loggers = [logging.root, *map(logging.getLogger, names)]
    return {
        **{
            f"sys.{name}": id(getattr(sys, name)) for name in ("stdin", "stdout", "stderr", "excepthook", "displayhook")
        },
        **{f"descriptor {n}": (os.fstat(n).st_dev, os.fstat(n).st_ino) for n in range(3)},
        "logging.disable": logging.root.manager.disable,
        **{f"logger {each.name}": (each.level, each.handlers[:], each.disabled, each.propagate) for each in loggers},
        "warnings.filters": [id(each) for each in warnings.filters if each is not quiet._FILTER],
        "quiet": [quiet._FILTER in warnings.filters, *(quiet._is_shown in each.filters for each in loggers)],
        "warnings.showwarning": id(warnings.showwarning),
        "gc": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count() > 0),  # frozen objects may end
        "environment": dict(os.environ),
        "directory": os.getcwd(),
        "recursion": sys.getrecursionlimit(),
        "signals": {number.name: signal.getsignal(number) for number in SIGNALS},
        "random": hash(random.getstate()),
        "numpy.random": np.random.get_state()[1].tobytes(),  # type: ignore[index,union-attr]
        **torch_state(),
        **{f"module {n}": id(m) for n, m in list(sys.modules.items()) if n.partition(".")[0] in PACKAGES},
        **{name: value for module in MODULES for name, value in attributes(module)},
    }


def changed(before: State, after: State) -> set[str]:
    """Keys whose values differ; what is there for the first time is no change."""
    return {key for key in before if key not in after or before[key] != after[key]}


class Watch:
    """Looks from a second thread at the state of the process, in the middle of calls.

    Attributes:
        seen: what differed from the beginning.
    """

    def __init__(self) -> None:
        self.before = in_a_new_thread(state)
        self.seen: set[str] = set()
        self.looks = 0

    def look(self, *reported: Any) -> None:
        self.looks += 1
        self.seen |= changed(self.before, in_a_new_thread(state))


watching: list[Watch] = []


class Net(nn.Module):
    """A network in whose forward somebody looks at the process, and that may fail there."""

    def __init__(self, error: BaseException | None = None) -> None:
        super().__init__()
        self.error = error
        with torch.random.fork_rng(devices=[]):
            self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for watch in watching:
            watch.look()
        if self.error is not None:
            raise self.error
        return torch.relu(self.linear(x))


class OnValues(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        return y if y.sum() > 0 else -y


def rows() -> Iterator[tuple[torch.Tensor]]:
    for row in (X, -X):
        for watch in watching:
            watch.look()
        yield (row,)


def heard(*reported: Any) -> None:
    for watch in watching:
        watch.look()


def compiled(model: nn.Module | None = None, target: str = TARGET) -> micronpu.CompiledProgram:
    model = Net().eval() if model is None else model.eval()
    return micronpu.compile(model, (X,), target, calibration=[*rows()], callback=heard)


def fails(call: Callable[[], Any]) -> None:
    with pytest.raises(MicroNpuError):
        call()


MANY = [X * (1 - i / 20) for i in range(20)]
CONV = nn.Conv1d(2, 3, 2).eval()
CALLS: dict[str, Callable[[Path, micronpu.CompiledProgram], Any]] = {
    "compile for a core": lambda folder, program: compiled(),
    "compile for an Ethos-U": lambda folder, program: compiled(target="ethos-u55-128"),
    "compile for a Neutron": lambda folder, program: compiled(target="imxrt700"),
    "check": lambda folder, program: micronpu.check(Net().eval(), (X,), TARGET),
    "blame": lambda folder, program: micronpu.blame(Net().eval(), [X, X], TARGET, callback=heard),
    "evaluate": lambda folder, program: micronpu.evaluate(Net().eval(), [X, X], program, callback=heard),
    "fix": lambda folder, program: micronpu.fix(Net().eval(), MANY, TARGET, budget=1, callback=heard),
    "advise": lambda folder, program: micronpu.advise(
        Net().eval(), (X,), TARGET, calibration=[*rows()], callback=heard
    ),
    "sparsify": lambda folder, program: micronpu.sparsify(Net().eval(), [*rows()], "imxrt700", callback=heard),
    "streaming": lambda folder, program: micronpu.streaming(CONV, (torch.ones(1, 2, 8),), dim=2),
    "calibrate_and_quantize": lambda folder, program: calibrate_and_quantize(
        torch.export.export(Net().eval(), (X,)), rows(), NeutronQuantizer(NeutronTargetSpec("imxrt700"))
    ),
    "run": lambda folder, program: program.run(X),
    "save": lambda folder, program: program.save(folder / "a.pte", manifest=True),
    "save_etrecord": lambda folder, program: program.save_etrecord(folder / "a.bin"),
    "to_litert": lambda folder, program: program.to_litert(),
    "deploy": lambda folder, program: program.deploy(folder / "deployed"),
    "an unknown target": lambda folder, program: fails(lambda: compiled(target="nothing")),
    "an error in forward": lambda folder, program: fails(lambda: compiled(Net(ValueError("why")))),
    "an end in forward": lambda folder, program: fails(lambda: compiled(Net(SystemExit(3)))),
    "a branch on values": lambda folder, program: fails(lambda: compiled(OnValues())),
    "a wrong input": lambda folder, program: fails(lambda: program.run(X, X)),
}


LONG = ("fix", "advise", "sparsify")


@pytest.fixture(scope="module")
def program() -> micronpu.CompiledProgram:
    for name in MODULES:
        importlib.import_module(name)
    return compiled()


@pytest.fixture(scope="module")
def of_torch_alone(program: micronpu.CompiledProgram) -> set[str]:
    """What torch itself changes while it exports."""
    with watched() as watch:
        torch.export.export(Net().eval(), (X,))
    assert watch.looks
    return watch.seen


@contextlib.contextmanager
def watched() -> Iterator[Watch]:
    watch = Watch()
    watching.append(watch)
    try:
        yield watch
    finally:
        watching.clear()


@pytest.mark.sweep
@pytest.mark.parametrize("call", [pytest.param(c, marks=[pytest.mark.slow] if c in LONG else []) for c in CALLS])
def test_a_call_leaves_the_process_alone(
    call: str, program: micronpu.CompiledProgram, of_torch_alone: set[str], tmp_path: Path
) -> None:
    before = state()
    with watched() as watch:
        CALLS[call](tmp_path, program)
    assert sorted(changed(before, state())) == []
    assert sorted(watch.seen - of_torch_alone - {"quiet"}) == []  # which has no effect on other threads


def test_random_numbers_are_kept(program: micronpu.CompiledProgram) -> None:
    before = state()
    with contextlib.suppress(ValueError), random_kept():
        drawn = torch.rand(1), random.random(), np.random.rand()
        assert {"torch.random", "random", "numpy.random"} <= changed(before, state())
        raise ValueError(drawn)
    assert not changed(before, state())


def test_a_change_is_seen(program: micronpu.CompiledProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    before = state()
    with contextlib.redirect_stderr(None), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        monkeypatch.setattr(torch.nn.Module, "__call__", lambda *given: None)
        monkeypatch.setitem(os.environ, "NEW", "1")
        logging.disable(logging.INFO)
        found = changed(before, state())
        elsewhere = changed(before, in_a_new_thread(state))
        logging.disable(before["logging.disable"])
    assert not any(before["quiet"])
    names = {"sys.stderr", "warnings.filters", "logging.disable", "environment"}
    names.add("torch.nn.modules.module:Module.__call__")
    assert (found, elsewhere) == (names | {"torch.grad"}, names)
