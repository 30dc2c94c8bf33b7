"""The names of `micronpu` and where each is defined: the one list, read by type checkers and by `base.lazy`."""

from micronpu.accuracy.blame import blame as blame
from micronpu.accuracy.evaluate import evaluate as evaluate
from micronpu.accuracy.fix import fix as fix
from micronpu.accuracy.numeric_gap import NumericGap as NumericGap
from micronpu.advice.advise import advise as advise
from micronpu.base.errors import MicroNpuError as MicroNpuError
from micronpu.compiler.compile import check_model, compile_model
from micronpu.compiler.methods import CompiledMethods as CompiledMethods
from micronpu.compiler.program import CompiledProgram as CompiledProgram
from micronpu.compiler.verification import Verification as Verification
from micronpu.quantize.quantization import Quantization as Quantization
from micronpu.recipes import get_chip_recipe as get_chip_recipe
from micronpu.recipes import get_corstone300_recipe as get_corstone300_recipe
from micronpu.recipes import get_corstone320_recipe as get_corstone320_recipe
from micronpu.recipes import get_imx93_recipe as get_imx93_recipe
from micronpu.recipes import get_imxrt700_recipe as get_imxrt700_recipe
from micronpu.report.budgets import Budgets as Budgets
from micronpu.report.warnings import AccuracyWarning as AccuracyWarning
from micronpu.report.warnings import ReportWarning as ReportWarning
from micronpu.transforms.sparsity import Sparsified as Sparsified
from micronpu.transforms.sparsity import SparsityOptions as SparsityOptions
from micronpu.transforms.sparsity import sparsify as sparsify
from micronpu.transforms.streaming import streaming as streaming
from micronpu.transforms.wanted import Transforms as Transforms

check = check_model
compile = compile_model
__version__: str
