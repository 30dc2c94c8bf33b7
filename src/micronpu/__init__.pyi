"""The names of `micronpu` and where each is defined: the one list, read by type checkers and by `base.lazy`."""

from micronpu.accuracy.blame import blame as blame
from micronpu.accuracy.evaluate import evaluate as evaluate
from micronpu.accuracy.fix import fix as fix
from micronpu.accuracy.numeric_gap import NumericGap as NumericGap
from micronpu.advice.advise import advise as advise
from micronpu.base.cache import CacheWarning as CacheWarning
from micronpu.base.cache import no_cache as no_cache
from micronpu.base.errors import BudgetError as BudgetError
from micronpu.base.errors import ConverterError as ConverterError
from micronpu.base.errors import FileError as FileError
from micronpu.base.errors import ImportMismatchError as ImportMismatchError
from micronpu.base.errors import InternalError as InternalError
from micronpu.base.errors import MicroNpuError as MicroNpuError
from micronpu.base.errors import ModelError as ModelError
from micronpu.base.errors import MovedError as MovedError
from micronpu.base.errors import NothingLeftError as NothingLeftError
from micronpu.base.errors import NotOnHostError as NotOnHostError
from micronpu.base.errors import OptionError as OptionError
from micronpu.base.errors import PassError as PassError
from micronpu.base.errors import PayloadError as PayloadError
from micronpu.base.errors import RuntimeUnavailableError as RuntimeUnavailableError
from micronpu.base.errors import UnsupportedError as UnsupportedError
from micronpu.base.errors import UpstreamError as UpstreamError
from micronpu.base.errors import WrongResultError as WrongResultError
from micronpu.compiler.compile import check_model, compile_model
from micronpu.compiler.program import CompiledMethods as CompiledMethods
from micronpu.compiler.program import CompiledProgram as CompiledProgram
from micronpu.deploy.deployment import Deployment as Deployment
from micronpu.frontend.model_files import read_model as read_model
from micronpu.frontend.model_files.recorder import FileModel as FileModel
from micronpu.partition.partition import Partitioning as Partitioning
from micronpu.passes.base import Pass as Pass
from micronpu.passes.pipeline import Pipeline as Pipeline
from micronpu.quantize.quantization import Quantization as Quantization
from micronpu.recipes import get_chip_recipe as get_chip_recipe
from micronpu.recipes import get_corstone300_recipe as get_corstone300_recipe
from micronpu.recipes import get_corstone320_recipe as get_corstone320_recipe
from micronpu.recipes import get_imx93_recipe as get_imx93_recipe
from micronpu.recipes import get_imxrt700_recipe as get_imxrt700_recipe
from micronpu.report.accuracy import Evaluation as Evaluation
from micronpu.report.budgets import Budgets as Budgets
from micronpu.report.delegation import DelegationReport as DelegationReport
from micronpu.report.diagnosis import Blame as Blame
from micronpu.report.diagnosis import Fixes as Fixes
from micronpu.report.verdict import Reason as Reason
from micronpu.report.verdict import Verdict as Verdict
from micronpu.report.warnings import AccuracyWarning as AccuracyWarning
from micronpu.report.warnings import ReportWarning as ReportWarning
from micronpu.targets.cortexm.options import CortexMOptions as CortexMOptions
from micronpu.targets.ethosu.options import EthosUOptions as EthosUOptions
from micronpu.targets.neutron.options import NeutronOptions as NeutronOptions
from micronpu.transforms.sparsity import Sparsified as Sparsified
from micronpu.transforms.sparsity import SparsityOptions as SparsityOptions
from micronpu.transforms.sparsity import sparsify as sparsify
from micronpu.transforms.sparsity.entry import Transforms as Transforms
from micronpu.transforms.streaming import Streaming as Streaming
from micronpu.transforms.streaming import streaming as streaming
from micronpu.verify.verification import Verification as Verification

check = check_model
compile = compile_model
__version__: str
