"""Which tests judge which file, and what cannot be noticed."""

from __future__ import annotations

_PASSES = "tests/unit/passes/test_passes_"
_PASS_ROWS = (f"{_PASSES}rows.py",)
_REWRITE_ROWS = ("tests/unit/targets/test_rewrites_rows.py",)
_NEUTRON_LIMITS = "tests/unit/targets/neutron/test_neutron_limits.py"
_OFFERS = "tests/unit/targets/ethosu/test_ethosu_offers.py"
_PUBLISHED = ("tests/unit/targets/neutron/test_published_rules.py",)
_PARTITION, _ELEMENTWISE = (
    "tests/compile/partition/test_partition.py",
    "tests/compile/ops/test_operators_elementwise.py",
)

PLANS: dict[str, tuple[str, ...]] = {
    "passes/fusion.py": (f"{_PASSES}fusion.py", f"{_PASSES}cleanup.py", *_PASS_ROWS),
    "passes/layout.py": tuple(f"{_PASSES}{name}.py" for name in ("layout", "lift", "reshapes")) + _PASS_ROWS,
    "passes/legalize.py": tuple(f"{_PASSES}{name}.py" for name in ("legalize", "tosa", "reshapes")) + _PASS_ROWS,
    "passes/base.py": _PASS_ROWS,
    "passes/pipeline.py": (*(f"{_PASSES}{name}.py" for name in ("pipeline", "of_ones_own")), *_PASS_ROWS),
    "passes/rewrite.py": (f"{_PASSES}choose.py", f"{_PASSES}rewrites.py", _NEUTRON_LIMITS, *_REWRITE_ROWS),
    "targets/neutron/rules.py": (
        *_PUBLISHED,
        f"{_PARTITION}::test_both_sides_of_a_limit",
        f"{_PARTITION}::test_activations_have_to_be_int8",
        f"{_PARTITION}::test_parts_of_a_concatenation_share_their_qparams",
        "tests/compile/ops/test_operators_spatial.py::test_both_sides_of_a_limit",
        f"{_ELEMENTWISE}::test_rule_broadcast_goes_one_way",
        f"{_ELEMENTWISE}::test_rule_matrices_are_symmetric",
    ),
    **{f"targets/neutron/rewrites/{name}.py": (_NEUTRON_LIMITS, *_REWRITE_ROWS) for name in ("views", "windows")},
    "targets/neutron/rewrites/arithmetic.py": (
        _NEUTRON_LIMITS,
        "tests/compile/targets/neutron/test_neutron_rewrites.py::test_a_difference_that_rounds_otherwise_is_left_alone",
        *_REWRITE_ROWS,
    ),
    **{
        f"targets/ethosu/rewrites/{name}.py": (
            "tests/unit/targets/ethosu/test_ethosu_limits.py",
            _OFFERS,
            *_REWRITE_ROWS,
        )
        for name in ("byte_products", "cheaper", "fit", "sound", "spare")
    },
    "targets/ethosu/rewrites/conversions.py": ("tests/unit/targets/ethosu/test_ethosu_conversions.py",),
    "targets/ethosu/rules.py": tuple(
        f"tests/oracle/targets/ethosu/test_vela.py::test_judge_{name}"
        for name in (
            "asks_once_per_kind",
            "tries_both_layouts_and_says_the_limit",
            "takes_an_operator_that_one_form_can_express",
            "gives_velas_reason",
        )
    ),
    "targets/options.py": (
        "tests/compile/partition/test_migration_neutron.py::test_a_check_of_ones_own_keeps_operators_on_the_host",
        "tests/runtime/test_ethosu_programs.py::test_checks_of_the_user",
    ),
    "targets/cortexm/rules.py": tuple(
        f"tests/unit/targets/cortexm/test_cortexm_{name}.py" for name in ("rules", "rewrites")
    ),
    "targets/cortexm/rewrites.py": ("tests/unit/targets/cortexm/test_cortexm_rewrites.py", *_REWRITE_ROWS),
}
"""A file of the package and the tests that have to notice what is done to it, those that are quick first."""

NO_DIFFERENCE: dict[str, dict[str, str]] = {
    "passes/layout.py": {
        "without `if isinstance(node.op, Transpose)`": "a transpose says of itself that none passes through it",
        "`len(seen) < _FURTHEST` is `len(seen) <= _FURTHEST`": "a bound on time",
        "without `if not isinstance(node.op, Slice)`": "the node is among the readers, all of which have to be slices",
        "`left < right` is `left <= right`": "the loop ends where they are equal",
    },
    "targets/neutron/rules.py": {
        "`size > MAX_FILTER` is `size >= MAX_FILTER`": "channels count in multiples of an even number, 65535 is odd",
    },
    "targets/neutron/rewrites/arithmetic.py": {
        "`scale < _SMALLEST_SCALE` is `scale <= _SMALLEST_SCALE`": "a scale is a float32 number, and 1e-30 is none",
    },
    "targets/neutron/rewrites/views.py": {
        "`_span(x.type) < 2 * _NOTHING` is `_span(x.type) <= 2 * _NOTHING`": "no float32 scale times 255 is 16",
    },
    "targets/ethosu/rewrites/spare.py": {
        "`after < 0` is `after <= 0`": "what is as long as wanted is cut to what it is",
        "`after < 0` is `after < 1`": "what is as long as wanted is cut to what it is",
        "`runs[-1][-1] < axis` is `runs[-1][-1] <= axis`": "no axis comes twice",
    },
}
"""Mutants, file by file, that compute the same as what they were made of, and why."""
