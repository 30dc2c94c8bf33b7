"""The vendor's converter as a plug-in, with a stand-in SDK that can also crash, hang, lie and return garbage."""

from __future__ import annotations

import json
import os
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.runtime.neutron_programs import add_model, split_model
from tests.stand_in_sdk.eiq_neutron_sdk._wrapping import wrap

from micronpu.base.errors import ConverterError, MicroNpuError, ModelError, OptionError
from micronpu.cli.doctor import examine
from micronpu.container.payload import align, pack, parse
from micronpu.ir import DType, GraphBuilder, QParams, TensorType
from micronpu.ir.graph import Origin
from micronpu.ops.elementwise import Add
from micronpu.targets.neutron.compile import compile_graph, convert_partition, write_partition
from micronpu.targets.neutron.converter import ConverterOptions, ReferenceConverter
from micronpu.targets.neutron.neutron_graph import read_program
from micronpu.targets.neutron.options import NeutronOptions
from micronpu.targets.neutron.sdk import SdkConverter, default_converter, parse_log, sdk_is_installed, select_converter
from micronpu.targets.neutron.target_spec import NeutronTargetSpec

STAND_IN = Path(__file__).parents[3] / "stand_in_sdk"
OPTIONS = ConverterOptions("imxrt700", timeout=60)


@pytest.fixture(params=["older", "newer"])
def names(request, monkeypatch):
    """What the stand-in calls its functions: as NXP's SDK up to 3.2.2, or as the one after it."""
    monkeypatch.setenv("STAND_IN_NAMES", request.param)
    return request.param


@pytest.fixture
def mood(monkeypatch):
    """Sets how the stand-in goes wrong and gives a converter that uses it."""

    def set_(name: str = "") -> SdkConverter:
        monkeypatch.setenv("STAND_IN_MOOD", name)
        return SdkConverter([STAND_IN])

    return set_


# --- processes ----------------------------------------------------------------------------------------------------


def test_conversion(mood, names):
    artifacts = mood().convert(add_model(), OPTIONS)
    assert artifacts.kind == "silicon" and artifacts.versions == {"eiq_neutron_sdk": "9.9.9"}
    assert artifacts.weights == b"the LiteRT model, %d bytes" % len(add_model())
    assert artifacts.kernels == b"made-up kernels" and len(artifacts.microcode) == 96
    assert (artifacts.inputs, artifacts.outputs, artifacts.payload_version) == ((0, 1), (0,), 0)
    assert artifacts.cycles == 353039
    assert artifacts.warnings == ("WARNING: layer 3 falls back to a slower kernel",)
    assert artifacts.kernel_selection == ""
    assert "Converting for imxrt700" in artifacts.log and "('minNumOpsPerGraph', 1)" in artifacts.log


def test_options_reach_the_converter(mood, names):
    options = ConverterOptions(
        "imxrt700",
        extra_flags=("--verbose", "--exclude-graph-passes=A,B", "minNumOpsPerGraph=7"),
        fetch_constants_to_sram=True,
        dump_kernel_selection_code=True,
        profiling=True,
        sdk_version="9.9.9",
    )
    artifacts = mood().convert(add_model(), options)
    for expected in ("('excludeGraphPasses', 'A,B')", "('fetchConstantsToSRAM', True)", "('minNumOpsPerGraph', 7)",
                     "('useProfiling', True)", "('verbose', True)"):  # fmt: skip
        assert expected in artifacts.log
    assert ("('dumpMicrocode', True)" in artifacts.log) == (names == "newer")
    assert artifacts.payload_version == 1
    assert "KERNEL(Conv2DStandardV1)" in artifacts.kernel_selection


@pytest.mark.sweep
def test_doctor_calls_the_converter(mood, names, monkeypatch):
    monkeypatch.syspath_prepend(STAND_IN)
    mood()
    (found,) = (f for f in examine() if f.name == "eiq_neutron_sdk")
    assert found.good and found.found == "9.9.9, makes a program of two operators for imxrt700"
    mood("no_function")
    (found,) = (f for f in examine() if f.name == "eiq_neutron_sdk")
    assert not found.good and not found.needed and "which micronpu calls" in found.found
    assert "functions of 3.2" in found.remedy


@pytest.mark.parametrize("excluded", [None, (), ("A", "B")])
def test_the_converter_leaves_out_the_passes_that_executorch_leaves_out(mood, excluded):
    given = {} if excluded is None else {"excluded_graph_passes": excluded}
    expected = "HoistSliceAboveTranspose,MergeTranspose" if excluded is None else ",".join(excluded)
    log = mood().convert(add_model(), ConverterOptions("imxrt700", **given)).log
    assert f"('excludeGraphPasses', '{expected}')" in log
    options = NeutronOptions(**given)
    assert NeutronOptions.from_specs(options.to_specs()) == options
    # Programs that were compiled with the default hold the bytes that they held before there was a choice.
    assert (b"excluded_graph_passes" in b"".join(k.encode() for k, _ in options.to_pairs())) == (excluded is not None)


@pytest.mark.parametrize("wrong", ["A,B", (1,), ("A,B",), ("",)])
def test_passes_to_leave_out_are_names(wrong):
    with pytest.raises(OptionError, match="excluded_graph_passes"):
        ConverterOptions("imxrt700", excluded_graph_passes=wrong)


def test_a_profile_of_the_board_names_lines_of_the_model(mood):
    profiled = ConverterOptions("imxrt700", profiling=True, timeout=60)
    artifacts = mood().convert(add_model(), profiled)
    assert artifacts.kernel_operators == ((0,),)
    qparams = QParams.per_tensor(0.05, 3)
    builder = GraphBuilder()
    x = builder.input(TensorType((2, 8), DType.INT8, qparams))
    y = builder.emit(Add(), x, x, qparams=qparams, origin=Origin(("first",), debug_handles=(5,)))
    z = builder.emit(Add(), y, y, qparams=qparams, origin=Origin(("second",), debug_handles=(7,)))
    graph = builder.finish(z)
    converted = convert_partition(graph, NeutronOptions(profiling=True), mood())
    assert write_partition(converted, NeutronOptions()).debug_handles == {0: (5,), 1: (7,)}
    unknown = replace(converted, artifacts=replace(converted.artifacts, kernel_operators=None))
    assert write_partition(unknown, NeutronOptions()).debug_handles == {}


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("crash", {}, "crashed with SIGSEGV"),
        ("silent_exit", {}, "ended the process without a result"),
        ("exit_code", {}, "ended with code 41"),
        ("raises", {}, "refused the partition: RuntimeError: Unsupported operator at location 7."),
        ("none", {}, "gave a NoneType instead of the bytes of a model"),
        ("number", {}, "gave a int instead"),
        ("floats", {}, "gave a list instead"),
        ("noise", {}, "gave 150 bytes that are not a LiteRT model"),
        ("import_fails", {}, "cannot be imported: ImportError: libneutron.so.3"),
        ("no_function", {}, "has no neutron_compiler.compileModel or neutron_converter.convertModel, which"),
        ("", {"target": "mcxn94x"}, "does not know the target 'mcxn94x'. Try: one of imx95, imxrt700"),
        ("", {"sdk_version": "3.2.0"}, "has version 9.9.9, but the compilation asks for 3.2.0"),
        ("", {"extra_flags": ("--fast",)}, "does not know the extra flag --fast"),
        ("", {"extra_flags": ("--verbose=7",)}, "extra flag --verbose=7"),
        ("", {"extra_flags": ("--min-num-ops-per-graph",)}, "has no value"),
        ("no_profiling", {"profiling": True}, "has no option for profiling"),
        ("no_selection_file", {"dump_kernel_selection_code": True}, "wrote 0 kernel selections"),
        ("leftovers", {}, "left operators over that the NPU does not take: 1 x ADD"),
    ],
)
def test_what_goes_wrong_is_one_sentence(mood, name, options, sentence):
    with pytest.raises(ConverterError) as caught:
        mood(name).convert(add_model(), ConverterOptions(**{"target": "imxrt700", **options}))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value) and "Traceback" not in str(caught.value)
    if name == "crash":
        assert "about to touch address 0" in caught.value.log


def test_a_hang_is_ended_with_everything_it_started(mood, monkeypatch, tmp_path):
    """The stand-in and its child hold a pipe open as long as they live, and write to it if nobody ends them."""
    os.mkfifo(tmp_path / "alive")
    monkeypatch.setenv("STAND_IN_ALIVE", str(tmp_path / "alive"))
    converter = mood("hang")
    for seconds in (2, 20, 200):  # a busy machine may not get to the child at once
        with open(os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)) as alive:
            os.set_blocking(alive.fileno(), True)
            with pytest.raises(ConverterError, match=f"did not finish within {seconds} seconds and was ended"):
                converter.convert(add_model(), ConverterOptions("imxrt700", timeout=seconds))
            if said := alive.read():
                assert said == "started\n"
                return
    pytest.fail("the stand-in never started its child")


def test_a_missing_sdk_is_a_sentence(tmp_path):
    assert not sdk_is_installed()
    with pytest.raises(ConverterError, match=r"is not installed.*reference"):
        SdkConverter().convert(add_model(), OPTIONS)
    with pytest.raises(ConverterError, match="cannot be imported: ModuleNotFoundError"):
        SdkConverter([tmp_path]).convert(add_model(), OPTIONS)


def test_two_versions_in_one_installation(mood, tmp_path):
    for folder in (STAND_IN / "eiq_neutron_sdk",):
        (tmp_path / "eiq_neutron_sdk").symlink_to(folder)
    information = tmp_path / "eiq_neutron_sdk-1.2.3.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: eiq_neutron_sdk\nVersion: 1.2.3\n")
    with pytest.raises(ConverterError, match=r"mixture of two versions.*9\.9\.9.*1\.2\.3"):
        SdkConverter([tmp_path]).convert(add_model(), OPTIONS)


def test_choice_of_converter(monkeypatch):
    assert isinstance(default_converter(), ReferenceConverter)
    assert isinstance(select_converter("auto", NeutronTargetSpec("imx95")), ReferenceConverter)
    monkeypatch.syspath_prepend(STAND_IN)
    assert sdk_is_installed()
    assert isinstance(default_converter(), SdkConverter)
    assert isinstance(select_converter("auto", NeutronTargetSpec("imxrt700")), SdkConverter)
    assert isinstance(
        select_converter("auto", NeutronTargetSpec("imx95")), ReferenceConverter
    )  # the runtime is not known to take it
    assert isinstance(select_converter("reference", NeutronTargetSpec("imxrt700")), ReferenceConverter)
    with pytest.raises(ConverterError, match=r"For imx95 there are only reference .* for imxrt700 alone"):
        select_converter("sdk", NeutronTargetSpec("imx95"))
    # Found where this process finds it, although the worker does not inherit this process's path.
    assert SdkConverter().convert(add_model(), OPTIONS).kind == "silicon"


@pytest.mark.parametrize(
    ("log", "cycles", "warnings"),
    [
        ("", None, ()),
        ("Cycle estimation = 12 cycles (NPU only)\n", 12, ()),
        ("cycle estimation: 1,000\nCycle estimation = 2,345 cycles", 2345, ()),
        ("x\n[Warning] a\nno warnings\n  WARNING b  \n[Warning] a\n", None, ("[Warning] a", "WARNING b")),
        ("Cycle estimation = , cycles", None, ()),
    ],
)
def test_log(log, cycles, warnings):
    assert parse_log(log) == (cycles, warnings)


# --- what the converted model holds -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1])
def test_program_in_the_converted_model(version):
    program = read_program(wrap(split_model(), version), split_model())
    assert (program.inputs, program.outputs, program.payload_version) == ((0, 1), (0, 1, 2), version)
    assert struct.unpack_from("<I", program.microcode, 24) == (96,)


@pytest.mark.parametrize(
    ("defect", "inputs", "outputs"),
    [
        ("reordered", (1, 0), (2, 1, 0)),
        ("renamed", (0, 1), (0, 1, 2)),
        ("padded_buffers", (0, 1), (0, 1, 2)),
    ],
)
def test_changes_that_a_converter_may_make(defect, inputs, outputs):
    program = read_program(wrap(split_model(), 0, defect), split_model())
    assert (program.inputs, program.outputs) == (inputs, outputs)
    assert program.weights == b"the LiteRT model, %d bytes" % len(split_model())


@pytest.mark.parametrize(
    ("defect", "sentence"),
    [
        ("leftovers", "left operators over that the NPU does not take: 1 x ADD, 2 x SLICE"),
        ("nothing_left", "has no NeutronGraph operator"),
        ("two_graphs", "2 NeutronGraph operators"),
        ("two_subgraphs", "2 subgraphs instead of one"),
        ("too_few_operands", "has 2 inputs, but microcode, weights and kernels alone are three"),
        ("two_extra_outputs", "has 5 outputs where the partition has 3"),
        ("operand_out_of_range", "is tensor 999, but there are 9 tensors"),
        ("result_out_of_range", "is tensor -7"),
        ("buffer_out_of_range", "has buffer 77"),
        ("absent_kernels", "comes without its kernels"),
        ("weights_are_an_input", "weights of the NeutronGraph operator are an input or output"),
        ("weights_are_int8", "declared as int8"),
        ("shape_of_weights", r"declared as uint8\[31\], but hold 28 bytes"),
        ("wrong_magic", "0x12345678"),
        ("short_microcode", "40 bytes of microcode"),
        ("wrong_weights_size", "announces 29 bytes of weights, but it came with 28"),
        ("hidden_tail", "announces 96 bytes of microcode, but it came with 112"),
        ("wrong_counts", "counts 3 inputs and 3 outputs where the NeutronGraph operator has 2 and 3"),
        ("scratch_is_an_output", "scratch buffer of the NeutronGraph operator is an input, output or constant"),
        ("reads_a_section", "reads `kernels`, which is no input of the partition"),
        ("writes_twice", r"writes the outputs \[0, 0, 0\]"),
        ("renamed_and_reordered", "changed input 0"),
        ("shape", r"changed input 0 of the partition, `t0`, from int8\[1, 6\].* to int8\[1, 6, 2\]"),
        ("element_type", "to int16"),
        ("scale", "scale 0.125"),
        ("extra_input", "has 3 inputs where the partition has 2"),
    ],
)
def test_lies_are_found(defect, sentence):
    with pytest.raises(ConverterError, match=sentence) as caught:
        read_program(wrap(split_model(), 0, defect), split_model())
    assert caught.value.hint


def test_an_input_may_only_be_dropped_where_nothing_reads_it():
    with pytest.raises(ConverterError, match="has lost input 0 of the partition, `t0`"):
        read_program(wrap(add_model(), 0, "lost_input"), add_model())


def test_any_damage_is_a_sentence():
    """Every byte of a converted model changed, and every length: a sentence, or a model that is still consistent."""
    original = add_model()
    converted = wrap(original)
    random = np.random.default_rng(0)
    refused = 0
    for position in range(len(converted)):
        damaged = bytearray(converted)
        damaged[position] ^= int(random.integers(1, 256))
        for data in (bytes(damaged), converted[:position]):
            try:
                read_program(data, original)
            except MicroNpuError as error:
                refused += isinstance(error, ConverterError)
    assert refused > len(converted)  # at the very least all that are cut short


def test_original_must_be_a_model():
    with pytest.raises(ModelError, match="needs a LiteRT model, and the bytes are none"):
        read_program(wrap(add_model()), b"something else")


# --- the way of a partition ---------------------------------------------------------------------------------------


def two_inputs():
    """y = a + b with inputs of different shape, so that a wrong order is seen."""
    builder = GraphBuilder()
    a = builder.input(TensorType((2, 8), DType.INT8, QParams.per_tensor(0.05, 3)))
    b = builder.input(TensorType((1, 8), DType.INT8, QParams.per_tensor(0.02, -7)))
    return builder.finish(builder.emit(Add(), a, b, qparams=QParams.per_tensor(0.06, 1)))


def test_layout_follows_the_order_of_the_npu_program(mood):
    compiled = compile_graph(two_inputs(), NeutronOptions(profiling=True), mood("reordered"))
    payload = parse(compiled.payload)
    assert [s.index for s in payload.layout.inputs] == [1, 0]
    assert (payload.layout.num_arguments, payload.layout.version, payload.kind) == (2, 1, "silicon")
    assert payload.versions == {"eiq_neutron_sdk": "9.9.9"}
    assert payload.kernels == b"made-up kernels\0" and payload.microcode == compiled.artifacts.microcode


def test_versions_stand_behind_what_the_device_reads(mood):
    compiled = compile_graph(two_inputs(), NeutronOptions(), mood())
    artifacts = compiled.artifacts
    end = sum(align(len(s)) for s in (bytes(8), artifacts.microcode, artifacts.weights, artifacts.kernels))
    assert compiled.payload[end:][: len(b'{"eiq_neutron_sdk": "9.9.9"}')] == b'{"eiq_neutron_sdk": "9.9.9"}'
    assert len(compiled.payload) % 16 == 0
    layout = parse(compiled.payload).layout
    assert pack(layout, artifacts) == compiled.payload


def test_intermediates_of_a_failure_keep_the_log(mood, tmp_path):
    options = NeutronOptions(intermediates_dir=str(tmp_path / "made" / "here"))
    with pytest.raises(ConverterError, match="SIGSEGV"):
        compile_graph(two_inputs(), options, mood("crash"))
    folder = tmp_path / "made" / "here" / "partition"
    assert sorted(p.name for p in folder.iterdir()) == [
        "converter.log", "graph_after.txt", "graph_before.txt", "model.tflite",
    ]  # fmt: skip
    assert "about to touch address 0" in (folder / "converter.log").read_text()


def test_intermediates_and_kernel_selection(mood, tmp_path):
    options = NeutronOptions(intermediates_dir=str(tmp_path), dump_kernel_selection_code=True)
    compiled = compile_graph(two_inputs(), options, mood())
    folder = tmp_path / "partition"
    report = json.loads((folder / "report.json").read_text())
    assert report["converter"] == "sdk" and report["cycles_estimated_by_converter"] == 353039
    assert report["bytes"]["payload"] == len(compiled.payload)
    assert (folder / "payload.bin").read_bytes() == compiled.payload
    assert (folder / "model.tflite").read_bytes() == compiled.litert.data
    assert "add" in (folder / "graph_before.txt").read_text()
    assert "KERNEL(" in (tmp_path / "partition_kernel_selection.c").read_text()


def test_kernel_selections_of_the_sdk_are_merged_by_the_sdk(mood, monkeypatch, tmp_path):
    from micronpu.neutron import merge_kernel_selections

    files = []
    for number, name in enumerate(("B", "A", "B")):
        files.append(tmp_path / f"{number}_kernel_selection.c")
        files[-1].write_text(f"/* the stand-in's */\nKERNEL({name})\n")
    with pytest.raises(ConverterError, match="is not a kernel selection of micronpu"):
        merge_kernel_selections(files, tmp_path / "all.c")
    monkeypatch.syspath_prepend(STAND_IN)
    merged = merge_kernel_selections(files, tmp_path / "all.c")
    assert merged.read_text() == "/* merged by the stand-in */\nKERNEL(A)\nKERNEL(B)\n"
    mood("no_merge")
    with pytest.raises(ConverterError, match=r"has no eiq_neutron_sdk\.merge_kernel_selection_files"):
        merge_kernel_selections(files, tmp_path / "all.c")


def test_compile_names_the_converter(mood, monkeypatch, tmp_path):
    import torch

    import micronpu

    monkeypatch.syspath_prepend(STAND_IN)
    mood()
    model, x = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval(), torch.randn(1, 8)
    program = micronpu.compile(model, x, "imxrt700", calibration=[x])
    notes = " ".join(program.report.notes)
    assert "for silicon, made by eiq_neutron_sdk 9.9.9" in notes and "reference container" not in notes
    assert "353,039 cycles for the NPU alone" in " ".join(program.report.details)
    assert "falls back to a slower kernel" in notes
    with pytest.raises(MicroNpuError, match="host cannot execute"):
        program.run(x)
    options = NeutronOptions(converter="reference", intermediates_dir=str(tmp_path))
    reference = micronpu.compile(model, x, "imxrt700", calibration=[x], options=options)
    assert "reference container" in " ".join(reference.report.notes)
    assert str(tmp_path).encode() not in reference.buffer  # a path of this machine is nobody else's business
    assert reference.run(x).shape == (1, 8)


def test_a_partition_of_which_nothing_is_left_stays_on_the_host(mood, monkeypatch):
    import torch

    import micronpu

    monkeypatch.syspath_prepend(STAND_IN)
    mood("nothing_left")
    model, x = torch.nn.Linear(8, 8).eval(), torch.randn(1, 8)
    program = micronpu.compile(model, x, "imxrt700-neutron", calibration=[x])
    ((reason,),) = (v.reasons for v in program.report.host)
    assert "the converter found nothing to compute in the partition" in str(reason)
    assert float((program.run(x) - program.quantized(x)).abs().max()) < 1e-5


def test_timeout_is_validated():
    for timeout in (0, -1, float("inf"), "1", True):
        with pytest.raises(OptionError, match="positive number of seconds"):
            ConverterOptions("imxrt700", timeout=timeout)
