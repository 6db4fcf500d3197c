"""Owns the door by which torch's users know operators, `onemodel.nn.functional`: every function of `onemodel.ops`. Must not contain one."""

from onemodel.ops import *  # noqa: F403
