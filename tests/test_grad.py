"""Owns the generic gradient tests: every differentiable (operator, sample) against the derivative of its float64 reference, and by
`gradient_check`. Must not name an operator.
"""

import pytest
import registry_cases as checks

from onemodel.ops import OPS

GRADED = [case for case in checks.CASES if OPS[case[0]].differentiable]


@pytest.mark.parametrize("name,sample", GRADED, ids=[f"{name}-{sample.name}" for name, sample in GRADED])
def test_gradient(name, sample):
    checks.check_gradient(name, sample)
