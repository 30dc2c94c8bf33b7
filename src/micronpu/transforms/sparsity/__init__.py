"""2:4 sparsity from a trained network and unlabelled inputs."""

from micronpu.report.sparsity import SparseLayer, SparsePoint, SparsityReport
from micronpu.transforms.sparsity.entry import sparsify
from micronpu.transforms.sparsity.layers import pattern_kept
from micronpu.transforms.sparsity.options import SparsityOptions
from micronpu.transforms.sparsity.search import Sparsified

__all__ = ["SparseLayer", "SparsePoint", "Sparsified", "SparsityOptions", "SparsityReport", "pattern_kept", "sparsify"]
