"""Compiling in any thread, inside of any state of torch: the same bytes, or one message before any work."""

from __future__ import annotations

import contextlib
import logging
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

import micronpu
from micronpu.base.errors import MicroNpuError, ModelError, OptionError
from micronpu.base.quiet import quiet
from micronpu.upstream.session import exclusive, one_thread

TARGETS = ("cortex-m55", "imxrt700", "ethos-u55-128")
X = torch.linspace(-1, 1, 24).reshape(1, 2, 3, 4)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(2, 4, 3, padding=1), nn.Linear(4, 3)
        with torch.no_grad():
            for i, parameter in enumerate(self.parameters()):
                parameter.copy_(torch.linspace(-0.5, 0.5 + i, parameter.numel()).reshape(parameter.shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(torch.relu(self.conv(x)).mean((2, 3))) * torch.tensor(1.5)
        return y


MODEL = Net().eval()


def made(target: str = TARGETS[0], model: nn.Module = MODEL, x: torch.Tensor = X) -> bytes:
    return micronpu.compile(model, (x,), target, calibration=[(x,)]).buffer


@pytest.fixture(scope="module")
def serial() -> dict[str, bytes]:
    return {target: made(target) for target in TARGETS}


def test_threads_that_compile_at_once_make_the_bytes_of_one_after_the_other(serial: dict[str, bytes]) -> None:
    begin = threading.Barrier(2 * len(TARGETS))

    def compiled(target: str) -> bytes:
        begin.wait()
        return made(target)

    with ThreadPoolExecutor(2 * len(TARGETS)) as pool:
        assert list(pool.map(compiled, TARGETS * 2)) == [serial[target] for target in TARGETS * 2]


# ---------------------------------------------------------------- the caller's state of torch


@contextlib.contextmanager
def set_(setter: Callable[[Any], Any], value: Any, usual: Any) -> Iterator[None]:
    setter(value)
    try:
        yield
    finally:
        setter(usual)


@contextlib.contextmanager
def errors_of_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


STATES: dict[str, Callable[[], Any]] = {
    "inference": torch.inference_mode,
    "no gradients": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "default device": lambda: set_(torch.set_default_device, "meta", None),
    "device": lambda: torch.device("meta"),
    "deterministic": lambda: set_(torch.use_deterministic_algorithms, True, False),
    "NumPy's errors": lambda: np.errstate(all="raise"),
    "-W error": errors_of_warnings,
}
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "default dtype": (lambda: set_(torch.set_default_dtype, torch.float64, torch.float32), "torch.float64"),
    "fake tensors": (FakeTensorMode, "FakeTensorMode"),
    "counted operators": (lambda: FlopCounterMode(display=False), "takes every operator"),
}


@pytest.mark.sweep
@pytest.mark.parametrize("state", STATES)
def test_a_state_of_torch_changes_no_byte(state: str, serial: dict[str, bytes]) -> None:
    with STATES[state]():
        assert made() == serial[TARGETS[0]]


@pytest.mark.parametrize("state", REFUSED)
def test_a_state_for_all_threads_is_refused_before_any_work(state: str) -> None:
    entered, said = REFUSED[state]
    steps: list[str] = []
    with entered(), pytest.raises(OptionError, match=said):
        micronpu.compile(MODEL, (X,), TARGETS[0], calibration=[(X,)], callback=lambda step, part: steps.append(step))
    assert not steps


def test_inputs_that_were_made_in_inference_mode_are_inputs(serial: dict[str, bytes]) -> None:
    with torch.inference_mode():
        x = X.clone()
    assert x.is_inference() and made(x=x) == serial[TARGETS[0]]


@pytest.mark.parametrize(
    ("mode", "said"), [(torch.inference_mode, "inference_mode"), (FakeTensorMode, "FakeTensorMode")]
)
def test_weights_that_were_made_in_a_mode_are_refused(mode: Callable[[], Any], said: str) -> None:
    with mode():
        model = nn.Linear(4, 4).eval()
    with pytest.raises(ModelError, match=f"`weight` of the model Linear was made inside of .*{said}"):
        made(model=model)


def test_a_lazy_layer_has_no_shape_yet() -> None:
    with pytest.raises(ModelError, match="`weight` of the model LazyLinear has no shape yet"):
        made(model=nn.LazyLinear(3).eval())


def test_a_fake_input_is_refused() -> None:
    with FakeTensorMode():
        x = torch.empty(1, 2, 3, 4)
    with pytest.raises(ModelError, match="Example input 0 is a FakeTensor"):
        made(x=x)


# ---------------------------------------------------------------- what fails inside of torch.export


class Mapped(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.vmap(lambda row: row * row.mean())(x))


class MappedToNothing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda row: row * row.sum().item())(x)


class OnValues(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


class Ends(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise SystemExit(3)


def test_a_function_that_is_mapped_is_compiled() -> None:
    program = micronpu.compile(Mapped().eval(), (X,), TARGETS[0], calibration=[(X,)])
    (found,) = program.run(X)
    assert torch.allclose(found, Mapped()(X), atol=0.02)


@pytest.mark.parametrize("model", [MappedToNothing, OnValues, Ends])
def test_torch_works_after_an_error_inside_of_an_export(model: type[nn.Module], serial: dict[str, bytes]) -> None:
    with pytest.raises(MicroNpuError):
        made(model=model().eval())
    nn.Linear(2, 2)  # raises inside of torch.vmap
    assert made() == serial[TARGETS[0]]


def test_a_transform_that_a_call_leaves_open_is_left() -> None:
    with pytest.raises(ZeroDivisionError), exclusive():
        torch._C._functorch._vmap_increment_nesting(2, "error")
        raise ZeroDivisionError
    nn.Linear(2, 2)


# ---------------------------------------------------------------- other threads


def elsewhere(work: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def test_other_threads_get_their_own_warnings_and_logs(caplog: pytest.LogCaptureFixture) -> None:
    def heard(text: str) -> None:
        warnings.warn(text, UserWarning, stacklevel=1)
        logging.getLogger("torch.export").error(text)
        logging.getLogger("theirs").error(text)

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with quiet(logging.ERROR):
            with quiet():
                heard("ours")
            heard("ours")
            elsewhere(lambda: heard("theirs"))
        heard("afterwards")
    assert [str(each.message) for each in found] == ["theirs", "afterwards"]
    own = [record.getMessage() for record in caplog.records if record.name == "torch.export"]
    assert own == ["theirs", "afterwards"]
    assert [record.getMessage() for record in caplog.records if record.name == "theirs"].count("ours") == 2


def test_only_the_thread_that_computes_has_one_thread() -> None:
    torch.set_num_threads(2)
    with one_thread():
        assert torch.get_num_threads() == 1
        assert elsewhere(torch.get_num_threads) == 2
    assert torch.get_num_threads() == 2


def test_a_second_thread_waits() -> None:
    inside: list[int] = []
    most: list[int] = []

    def work() -> None:
        with exclusive(), exclusive():
            inside.append(1)
            most.append(len(inside))
            torch.zeros(64, 64) @ torch.zeros(64, 64)
            inside.pop()

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work) for _ in range(64)]:
            done.result()
    assert most == [1] * 64
