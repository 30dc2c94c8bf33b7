"""Export recipes: the programs of `executorch.export` are those of `micronpu.compile`, byte for byte."""

from __future__ import annotations

import copy
import dataclasses
import json
import subprocess
import sys
import types

import pytest
import torch
import torch.nn.functional as F
from executorch.exir.backend.partitioner import Partitioner
from executorch.export import ExportRecipe, ExportSession, QuantizationRecipe, recipe_registry
from executorch.export import export as export_session
from torch import nn

import micronpu
from micronpu import cortexm, recipes
from micronpu.base.errors import FileError, MicroNpuError, ModelError, OptionError
from micronpu.ethosu import EthosUOptions, EthosUQuantizer
from micronpu.frontend.exported import graph_module
from micronpu.neutron import NeutronOptions, calibrate_and_quantize
from micronpu.recipes import CortexMRecipeType, EthosURecipeType, NeutronRecipeType, combine
from micronpu.recipes.files import host_operators
from micronpu.recipes.lowering import any_batch_size
from micronpu.runtime import HostProgram, stamp

REFUSED = ("aten.minimum.default", "aten.softmax.int", "aten.max_pool2d.default")


class Classifier(nn.Module):
    """Batch norm, dropout, a residual, a reshape with the batch size in it, and operators that can be refused."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.dropout, self.last = nn.Dropout(0.1), nn.Linear(8 * 16, 10)
        self.eval()

    def forward(self, x):
        a = F.hardswish(self.norm(self.first(x)))
        b = F.relu(torch.minimum(a, self.second(a)) + a)
        z = F.max_pool2d(b, 2)
        return F.softmax(self.last(self.dropout(z.view(z.size(0), -1))), -1)


MODEL = Classifier()
INPUTS = [(torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(i)),) for i in range(8)]
X = torch.randn(256, 3, 8, 8, generator=torch.Generator().manual_seed(99))
Y = X[:, :, :4].mean((2, 3)).argmax(1)


def train(module):
    torch.manual_seed(3)
    optimizer = torch.optim.Adam(module.parameters(), 2e-3)
    for x, y in zip(X.split(32), Y.split(32), strict=True):
        optimizer.zero_grad()
        F.nll_loss(module(x).clamp(1e-4).log(), y).backward()
        optimizer.step()


def get(kind, **options):
    return ExportRecipe.get_recipe(kind, **options)


def exported(recipe, model=MODEL, inputs=INPUTS):
    return export_session(copy.deepcopy(model), inputs, recipe)


def same(session, program):
    """The same payloads and results; the very same program where the core computes nothing in int8."""
    buffer = bytes(session.get_pte_buffer())
    assert all(part.payload in buffer for part in program.partitions)
    if not program.report.core_operations:
        assert stamp(buffer) == program.buffer
    ran = HostProgram(buffer).run(*INPUTS[1])[0]
    assert torch.equal(ran, program.run(*INPUTS[1]))
    return ran


# ---------------------------------------------------------------- programs


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("recipe", "target"),
    [
        (lambda **o: get(NeutronRecipeType.INT8, **o), "imxrt700-neutron"),
        (lambda **o: get(NeutronRecipeType.INT8, silicon="mcxn94x", **o), "mcxn947"),
        (lambda **o: get(EthosURecipeType.INT8, **o), "ethos-u55-128"),
        (lambda **o: get(EthosURecipeType.INT8, silicon="ethos-u85-512", **o), "ethos-u85-512"),
        (micronpu.get_imxrt700_recipe, "imxrt700"),
        (micronpu.get_corstone300_recipe, "corstone300"),
        (micronpu.get_corstone320_recipe, "corstone320"),
        (micronpu.get_imx93_recipe, "imx93"),
    ],
)
def test_a_recipe_makes_the_program_of_compile(recipe, target):
    session = exported(recipe(calibration=INPUTS))
    program = micronpu.compile(MODEL, INPUTS[0], target, calibration=INPUTS)
    result = same(session, program)
    assert program.report.delegated > 3
    assert (result - MODEL(*INPUTS[1])).abs().max() < 0.02


@pytest.mark.sweep
def test_per_tensor_weights_and_options_of_the_backend():
    options = {"operators_not_to_delegate": REFUSED, "disabled_passes": ("pad_channels",)}
    session = exported(get(NeutronRecipeType.INT8, calibration=INPUTS, per_channel=False, **options))
    program = micronpu.compile(
        MODEL,
        INPUTS[0],
        "imxrt700-neutron",
        calibration=INPUTS,
        quantization=micronpu.Quantization(per_channel=False),
        options=NeutronOptions(**options),
    )
    same(session, program)
    assert len(program.report.host) >= 2


@pytest.mark.sweep
def test_the_example_inputs_calibrate_unless_data_is_given():
    program = micronpu.compile(MODEL, INPUTS[0], "imxrt700-neutron", calibration=INPUTS)
    same(exported(get(NeutronRecipeType.INT8)), program)
    same(exported(get(NeutronRecipeType.INT8, calibration=lambda: iter(INPUTS)), inputs=INPUTS[:1]), program)
    rows = torch.cat([x for (x,) in INPUTS]).numpy()
    same(exported(get(NeutronRecipeType.INT8, calibration=rows), inputs=INPUTS[:1]), program)


@pytest.mark.sweep
def test_what_the_npu_leaves_is_computed_in_int8_by_the_core():
    recipe = micronpu.get_imxrt700_recipe(calibration=INPUTS, operators_not_to_delegate=REFUSED)
    session = exported(recipe)
    program = micronpu.compile(
        MODEL,
        INPUTS[0],
        "imxrt700",
        calibration=INPUTS,
        options=NeutronOptions(operators_not_to_delegate=REFUSED),
    )
    same(session, program)
    operators = host_operators(session.get_executorch_program_manager())
    assert {"cortex_m::minimum.out", "cortex_m::softmax.out"} <= set(operators)
    assert not [o for o in operators if o.startswith("aten::")]
    (partitioner,) = recipe.lowering_recipe.partitioners
    assert {v.operator for v in partitioner.report.host if v.core} == {o.removeprefix("aten.") for o in REFUSED}


@pytest.mark.sweep
@pytest.mark.parametrize("reverse", [False, True])
def test_combined_recipes_make_the_program_of_the_chip(reverse):
    parts = [
        get(NeutronRecipeType.INT8, calibration=INPUTS, operators_not_to_delegate=REFUSED),
        get(CortexMRecipeType.INT8, silicon="cortex-m33"),
    ]
    session = exported(combine(parts[::-1] if reverse else parts))
    chip = exported(micronpu.get_imxrt700_recipe(calibration=INPUTS, operators_not_to_delegate=REFUSED))
    assert not [o for o in host_operators(session.get_executorch_program_manager()) if o.startswith("aten::")]
    x = INPUTS[1]
    programs = [HostProgram(bytes(s.get_pte_buffer())) for s in (session, chip)]
    assert torch.equal(programs[0].run(*x)[0], programs[1].run(*x)[0])


def test_the_core_alone():
    session = exported(get(CortexMRecipeType.INT8, silicon="cortex-m55", calibration=INPUTS))
    operators = host_operators(session.get_executorch_program_manager())
    assert "cortex_m::quantized_conv2d_nhwc.out" in operators
    assert not {"aten::convolution.out", "aten::addmm.out", "aten::_softmax.out"} & set(operators)
    program = HostProgram(bytes(session.get_pte_buffer()))
    assert (program.run(*INPUTS[1])[0] - MODEL(*INPUTS[1])).abs().max() < 0.02


def test_int16_activations():
    spec = EthosUOptions("ethos-u85-256")
    quantized = calibrate_and_quantize(
        torch.export.export(CONV, INPUTS[0]), INPUTS, EthosUQuantizer(spec, activations="int16")
    )
    program = micronpu.compile(quantized, INPUTS[0], "ethos-u85-256")
    session = exported(get(EthosURecipeType.INT16, silicon="ethos-u85-256", calibration=INPUTS), CONV)
    result = same(session, program)
    wide = (result - CONV(*INPUTS[1])).abs().max()
    narrow = micronpu.compile(CONV, INPUTS[0], "ethos-u85-256", calibration=INPUTS).run(*INPUTS[1])
    assert wide < (narrow - CONV(*INPUTS[1])).abs().max()


@pytest.mark.sweep
@pytest.mark.parametrize(("kind", "target"), [("int8", "imxrt700"), ("int16", "corstone320")])
def test_a_program_that_takes_and_gives_integers(kind, target):
    recipe = micronpu.get_chip_recipe(target, kind, io="int8", calibration=INPUTS)
    session = exported(recipe, CONV)
    program = micronpu.compile(
        CONV, INPUTS[0], target, calibration=INPUTS, quantization=micronpu.Quantization(activations=kind, io="int8")
    )
    assert stamp(bytes(session.get_pte_buffer())) == program.buffer
    (partitioner,) = recipe.lowering_recipe.partitioners
    assert partitioner.integer_io == program.integer_io
    (result,) = HostProgram(program.buffer).run(*partitioner.integer_io.quantize(INPUTS[1]))
    assert result.dtype == torch.int8
    (back,) = partitioner.integer_io.dequantize((result,))
    assert (back - CONV(*INPUTS[1])).abs().max() < 0.02


CONV = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1)).eval()


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["module", "program"])
def test_a_quantized_model_is_not_quantized_again(kind):
    program = micronpu.compile(MODEL, INPUTS[0], "imxrt700", calibration=INPUTS)
    model = program.quantized if kind == "module" else torch.export.export(program.quantized, INPUTS[0])
    same(export_session(model, INPUTS[:1], micronpu.get_imxrt700_recipe()), program)


@pytest.mark.sweep
def test_two_methods():
    recipe = micronpu.get_imxrt700_recipe(operators_not_to_delegate=REFUSED)
    models = {"forward": MODEL, "plain": CONV}
    buffer = bytes(exported(recipe, models, dict.fromkeys(models, INPUTS)).get_pte_buffer())
    program = micronpu.compile(CONV, INPUTS[0], "imxrt700", calibration=INPUTS)
    assert all(part.payload in buffer for part in program.partitions)


def test_the_delegate_is_seen_by_executorch():
    session = exported(micronpu.get_imxrt700_recipe())
    plan = session.get_executorch_program().execution_plan[0]
    assert {d.id for d in plan.delegates} == {"NeutronBackend"}


# ---------------------------------------------------------------- QAT


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("recipe", "target"),
    [
        (lambda **o: get(NeutronRecipeType.INT8_QAT, **o), "imxrt700-neutron"),
        (lambda **o: micronpu.get_corstone300_recipe("int8_qat", **o), "corstone300"),
    ],
)
def test_a_qat_recipe_trains_with_any_batch_size(recipe, target):
    torch.manual_seed(0)
    session = exported(recipe(train=train), inputs=INPUTS[:1])
    torch.manual_seed(0)
    program = micronpu.compile(MODEL, INPUTS[0], target, train=train)
    buffer = bytes(session.get_pte_buffer())
    before = micronpu.compile(MODEL, INPUTS[0], target, calibration=INPUTS)
    host, accuracy = HostProgram(buffer), {}
    for name, run in {"recipe": host.run, "compile": program.run, "before": before.run}.items():
        outputs = [run(x) for x in X[:64].split(1)]
        answers = torch.cat([o[0] if isinstance(o, (tuple, list)) else o for o in outputs])
        accuracy[name] = (answers.argmax(1) == Y[:64]).float().mean().item()
    assert accuracy["recipe"] == pytest.approx(accuracy["compile"], abs=0.05)
    assert accuracy["recipe"] > accuracy["before"] + 0.1


def test_npu_and_core_are_trained_once():
    parts = [get(kind, train=train) for kind in (NeutronRecipeType.INT8_QAT, CortexMRecipeType.INT8_QAT)]
    recipe = combine(parts, "both")
    assert (recipe.name, recipe.quantization_recipe.is_qat, len(recipe.quantization_recipe.quantizers)) == (
        "both",
        True,
        1,
    )
    assert recipe.quantization_recipe.quantizers == parts[0].quantization_recipe.quantizers


def test_the_core_alone_is_trained():
    session = exported(get(CortexMRecipeType.INT8_QAT, train=train), inputs=INPUTS[:1])
    operators = host_operators(session.get_executorch_program_manager())
    assert "cortex_m::quantized_linear.out" in operators or "cortex_m::quantized_conv2d_nhwc.out" in operators
    program = HostProgram(bytes(session.get_pte_buffer()))
    answers = torch.cat([program.run(x)[0] for x in X[:64].split(1)]).argmax(1)
    before = torch.cat([MODEL(x) for x in X[:64].split(1)]).argmax(1)
    assert (answers == Y[:64]).sum() > (before == Y[:64]).sum() + 5


def test_a_concatenation_keeps_the_wide_range_in_a_recipe():
    """torchao tells the quantizer where the observers are; ExecuTorch's wrapper has to pass that on."""

    class Join(nn.Module):
        def forward(self, x):
            return torch.cat([x * 10.0, torch.sigmoid(x)], 1)

    def run(module):
        for x in X.split(32):
            module(x)

    session = exported(get(NeutronRecipeType.INT8_QAT, train=run), Join().eval(), INPUTS[:1])
    program = micronpu.compile(Join().eval(), INPUTS[0], "imxrt700-neutron", train=run)
    assert stamp(bytes(session.get_pte_buffer())) == program.buffer


def test_a_reshape_is_freed_of_the_batch_size():
    program = graph_module(torch.export.export(MODEL, INPUTS[0]))
    module = torch.fx.GraphModule(program, program.graph)  # without the check of input shapes
    with pytest.raises(RuntimeError):
        module(X[:5])
    assert torch.allclose(any_batch_size(module)(X[:5]), MODEL(X[:5]), atol=1e-6)


# ---------------------------------------------------------------- files


@pytest.mark.sweep
def test_files_beside_the_program(tmp_path):
    recipe = micronpu.get_imxrt700_recipe(files_dir=str(tmp_path), operators_not_to_delegate=REFUSED)
    exported(recipe)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["target"] == "imxrt700-neutron-cortexm"
    assert "<html" in (tmp_path / "report.html").read_text()
    (partitioner,) = recipe.lowering_recipe.partitioners
    selections = sorted(f.name for f in tmp_path.glob("*_kernel_selection.c"))
    assert selections == sorted(f"{p.name}_kernel_selection.c" for p in partitioner.partitions)
    assert "CONV_2D" in "".join((tmp_path / name).read_text() for name in selections)


def test_files_as_a_stage_of_a_session(tmp_path):
    recipe = micronpu.get_imxrt700_recipe(operators_not_to_delegate=REFUSED)
    recipe.pipeline_stages = recipes.stages_with_files(recipe)
    session = ExportSession(copy.deepcopy(MODEL), INPUTS, recipe)
    session.register_stage(recipes.FILES, recipes.FilesStage(recipe, tmp_path))
    session.export()
    lines = (tmp_path / "host_operators.txt").read_text().splitlines()
    assert lines == host_operators(session.get_executorch_program_manager())
    assert "cortex_m::softmax.out" in lines
    assert (tmp_path / "report.json").is_file()


def test_files_need_a_folder(tmp_path):
    with pytest.raises(FileError, match="does not exist"):
        micronpu.get_imxrt700_recipe(files_dir=tmp_path / "missing")
    with pytest.raises(OptionError, match="files_dir"):
        micronpu.get_imxrt700_recipe(files_dir=3)
    with pytest.raises(OptionError, match="no folder"):
        recipes.FilesStage(micronpu.get_imxrt700_recipe(), "")


# ---------------------------------------------------------------- registration


def test_the_providers_are_registered():
    for provider in recipes.providers.PROVIDERS:
        assert provider.backend_name in recipe_registry.list_backends()
        for kind in recipe_registry.get_supported_recipes(provider.backend_name):
            options = {"train": train} if kind.name.endswith("_QAT") else {}
            recipe = ExportRecipe.get_recipe(kind, **options)
            assert isinstance(recipe.lowering_recipe.partitioners[0], Partitioner)
            assert recipe.quantization_recipe.is_qat == bool(options)


def test_another_backends_recipe_is_none_of_ours():
    assert recipes.NeutronRecipeProvider().create_recipe(EthosURecipeType.INT8) is None


def test_importing_micronpu_does_not_import_torch():
    code = "import sys, micronpu; assert 'get_imx93_recipe' in dir(micronpu) and 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


# ---------------------------------------------------------------- bad input


def test_an_unknown_option_is_warned_of_by_a_provider():
    """Recipes that are combined are given the same options."""
    with pytest.warns(UserWarning, match="no option `converter`"):
        get(CortexMRecipeType.INT8, converter="reference")


@pytest.mark.parametrize(
    ("kind", "options", "chip"),
    [
        (NeutronRecipeType.INT8, {"target": "imx95"}, "imx95"),
        (EthosURecipeType.INT8, {"target": "ethos-u85-512"}, "ethos-u85-512"),
        (EthosURecipeType.ETHOS_U55_INT8, {}, "ethos-u55-128"),
        (EthosURecipeType.ETHOS_U55_INT8, {"macs": 256}, "ethos-u55-256"),
        (EthosURecipeType.ETHOS_U85_INT8, {}, "ethos-u85-256"),
        (CortexMRecipeType.INT8, {"target": "cortex-m55"}, "cortex-m55"),
        (CortexMRecipeType.INT8, {"cpu": "cortex-m55", "instructions": "DSP"}, "cortex-m55"),
    ],
)
def test_the_chip_has_the_names_of_executorchs_recipes(kind, options, chip):
    (partitioner,) = get(kind, **options).lowering_recipe.partitioners
    assert chip in partitioner.device.target


def test_names_of_executorchs_recipes():
    assert recipes.ArmRecipeType.ETHOS_U65_INT8 is EthosURecipeType.ETHOS_U65_INT8
    assert recipes.NXPRecipeType.INT8 is NeutronRecipeType.INT8
    (partitioner,) = get(CortexMRecipeType.INT8, target="cortex-m55", isa="DSP").lowering_recipe.partitioners
    assert partitioner.device.core.instructions.value == "DSP"
    for more in ({"target": "ethos-u85-256"}, {"silicon": "ethos-u85-256"}, {"cpu": "ethos-u85-256"}):
        with pytest.raises(OptionError, match="was given the chip as"):
            get(EthosURecipeType.ETHOS_U55_INT8, **more)
    with pytest.raises(OptionError, match="ethos-u55-100"):
        get(EthosURecipeType.ETHOS_U55_INT8, macs=100)


@pytest.mark.parametrize("per_channel", [False, True])
def test_configurations_of_executorchs_cortex_m_quantizer(per_channel):
    name = f"INT8_PER_{'CHANNEL' if per_channel else 'TENSOR'}_CONFIG"
    own = getattr(cortexm, name)
    foreign = types.SimpleNamespace(label=f"executorch.backends.cortex_m.quantizer.quantization_configs.{name}")
    assert own.per_channel == per_channel
    for given in (own, foreign):
        assert cortexm.CortexMQuantizer(given).settings.default == own
    with pytest.raises(OptionError, match="SimpleNamespace"):
        cortexm.CortexMQuantizer(types.SimpleNamespace(label="INT4_CONFIG"))


@pytest.mark.parametrize("provider", recipes.providers.PROVIDERS, ids=lambda p: p.backend_name)
@pytest.mark.parametrize("word", ["isa", "macs", "config", "target_config", "system_config", "config_ini"])
def test_no_option_that_chooses_the_hardware_is_ignored(provider, word):
    """The program would be for another chip than the one that was asked for."""
    names = {f.name for f in dataclasses.fields(provider.backend.options)}
    if word in names or (word == "isa" and "instructions" in names):
        return
    kind = next(k for k in provider.get_supported_recipes() if not k.name.endswith("_QAT"))
    with pytest.raises(OptionError, match=f"has no option `{word}`. Try: silicon"):
        get(kind, **{word: "x"})


def sentence(error):
    text = str(error.value)
    assert isinstance(error.value, MicroNpuError) and "\n" not in text and text.count(". ") <= 1
    return text


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: get(NeutronRecipeType.INT8_QAT), "INT8_QAT is for quantization-aware training and has no training"),
        (lambda: micronpu.get_imxrt700_recipe("int8_qat"), "has no training function"),
        (lambda: micronpu.get_imxrt700_recipe(train=train), "post-training quantization and has a training function"),
        (lambda: get(EthosURecipeType.INT8_QAT, train=train, calibration=INPUTS), "and calibration data"),
        (lambda: get(EthosURecipeType.INT8_QAT, train="train.py"), "`train` is of type str"),
        (lambda: get(NeutronRecipeType.INT8, per_channel=1), "`per_channel` is 1"),
        (lambda: get(NeutronRecipeType.INT8, silicon="imxrt7000"), "imxrt7000"),
        (lambda: get(EthosURecipeType.INT8, silicon="ethos-u55-100"), "ethos-u55-100"),
        (lambda: get(CortexMRecipeType.INT8, silicon="cortex-a55"), "cortex-a55"),
        (lambda: micronpu.get_imxrt700_recipe("int4"), "`quantization` is 'int4'"),
        (lambda: micronpu.get_imxrt700_recipe("int16"), "The quantizer quantizes activations to int8"),
        (lambda: micronpu.get_imxrt700_recipe(config="mcxn94x"), "given `config`, which the chip decides"),
        (lambda: micronpu.get_imxrt700_recipe(silicon="mcxn94x"), "given `silicon`, which the chip decides"),
        (lambda: get(NeutronRecipeType.INT8, config="mcxn94x"), "no option `config`. Try: silicon"),
        (lambda: micronpu.get_corstone300_recipe(system_conf="x"), "no option `system_conf`. Try: system_config"),
        (lambda: micronpu.get_chip_recipe("imxrt800"), "no target 'imxrt800'"),
        (lambda: get(NeutronRecipeType.INT8, io="int4"), "`io` is 'int4'"),
        (lambda: combine([]), "takes a list of export recipes"),
    ],
)
def test_bad_options_are_one_sentence(make, says):
    with pytest.raises(MicroNpuError) as error:
        make()
    assert says in sentence(error)


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        (
            lambda: get(NeutronRecipeType.INT8),
            lambda: get(CortexMRecipeType.INT8_QAT, train=train),
            "the former trains the quantized model, the latter calibrates it",
        ),
        (
            lambda: get(EthosURecipeType.INT16),
            lambda: get(CortexMRecipeType.INT8),
            "one quantizes activations to int16 and the other to int8",
        ),
        (
            lambda: get(NeutronRecipeType.INT8),
            lambda: micronpu.get_corstone300_recipe(),
            "they set an NPU to imxrt700-neutron and corstone300-ethosu-cortexm",
        ),
        (
            lambda: get(CortexMRecipeType.INT8),
            lambda: get(CortexMRecipeType.INT8, silicon="cortex-m55"),
            "they set a core to cortex-m33 and cortex-m55",
        ),
        (
            lambda: micronpu.get_imxrt700_recipe(),
            lambda: get(CortexMRecipeType.INT8, silicon="cortex-m55"),
            "they set a core to cortex-m33 and cortex-m55",
        ),
        (
            lambda: get(NeutronRecipeType.INT8),
            lambda: ExportRecipe(name="other", strict=False),
            "disagree: Cannot combine recipes with conflicting 'strict'",
        ),
        (
            lambda: get(NeutronRecipeType.INT8),
            lambda: get(CortexMRecipeType.INT8, calibration=INPUTS),
            "only the latter has calibration data",
        ),
    ],
)
def test_two_recipes_that_disagree(first, second, says):
    with pytest.raises(OptionError) as error:
        combine([first(), second()])
    text = sentence(error)
    assert says in text and "disagree" in text


def test_a_recipe_without_quantization_can_be_combined():
    other = ExportRecipe(name="other", quantization_recipe=QuantizationRecipe(pre_prepare_passes=[lambda m: m]))
    assert len(combine([get(NeutronRecipeType.INT8), other]).quantization_recipe.quantizers) == 1


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("calibration", "says"),
    [
        ([torch.full((1, 3, 8, 8), float("nan"))], "NaN"),
        ([torch.zeros(1, 3, 9, 9)], "has shape"),
        ([], "empty"),
    ],
)
def test_bad_calibration_data(calibration, says):
    with pytest.raises(ModelError, match=says):
        exported(get(NeutronRecipeType.INT8, calibration=calibration))


def test_a_model_in_training_mode_is_not_calibrated():
    with pytest.raises(ModelError, match=r"in training mode.*model\.eval\(\)"):
        exported(get(NeutronRecipeType.INT8), Classifier().train(), [(X[:4],)])


def test_dynamic_shapes_are_refused():
    x = torch.randn(2, 3, 8, 8)
    with pytest.raises(ModelError, match="only known at run time"):
        export_session(
            CONV, [(x,)], get(NeutronRecipeType.INT8), dynamic_shapes=({0: torch.export.Dim("batch", min=2, max=9)},)
        )


def test_training_that_diverges():
    def diverge(module):
        module(X[:4])
        with torch.no_grad():
            next(module.parameters()).fill_(float("nan"))

    with pytest.raises(ModelError, match="NaN"):
        exported(get(NeutronRecipeType.INT8_QAT, train=diverge))
