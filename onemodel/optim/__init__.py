"""Owns the list of optimisers and what goes with them: one file per family. Must not contain one."""

from onemodel.optim import lr_scheduler
from onemodel.optim.adam import Adam, AdamW, RMSprop
from onemodel.optim.clip import clip_grad_norm_
from onemodel.optim.optimizer import Optimizer
from onemodel.optim.sgd import SGD

__all__ = ["SGD", "Adam", "AdamW", "Optimizer", "RMSprop", "clip_grad_norm_", "lr_scheduler"]
