"""Owns the list of layers: one file per family, torch's names, parameters and first values. Must not contain a layer."""

from onemodel.nn import functional
from onemodel.nn.activation import ELU, GELU, LeakyReLU, LogSoftmax, ReLU, Sigmoid, SiLU, Softmax, Softplus, Tanh
from onemodel.nn.attention import MultiheadAttention, TransformerEncoder, TransformerEncoderLayer
from onemodel.nn.containers import ModuleList, Sequential
from onemodel.nn.conv import Conv1d, Conv2d, ConvTranspose2d
from onemodel.nn.dropout import Dropout
from onemodel.nn.embedding import Embedding
from onemodel.nn.linear import Identity, Linear
from onemodel.nn.loss import BCEWithLogitsLoss, CrossEntropyLoss, CTCLoss, HuberLoss, L1Loss, MSELoss, NLLLoss, SmoothL1Loss
from onemodel.nn.module import Module, Parameter
from onemodel.nn.norm import BatchNorm1d, BatchNorm2d, GroupNorm, LayerNorm, RMSNorm
from onemodel.nn.pooling import AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveMaxPool2d, AvgPool1d, AvgPool2d, GlobalAvgPool2d, MaxPool1d, MaxPool2d
from onemodel.nn.recurrent import GRU, LSTM
from onemodel.nn.resize import Upsample, ZeroPad2d
from onemodel.nn.shape import Flatten

# One a line: several people add to this list at a time.
__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveMaxPool2d",
    "AvgPool1d",
    "AvgPool2d",
    "BCEWithLogitsLoss",
    "BatchNorm1d",
    "BatchNorm2d",
    "CTCLoss",
    "Conv1d",
    "Conv2d",
    "ConvTranspose2d",
    "CrossEntropyLoss",
    "Dropout",
    "ELU",
    "Embedding",
    "Flatten",
    "GELU",
    "GRU",
    "GlobalAvgPool2d",
    "GroupNorm",
    "HuberLoss",
    "Identity",
    "L1Loss",
    "LSTM",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "LogSoftmax",
    "MSELoss",
    "MaxPool1d",
    "MaxPool2d",
    "Module",
    "ModuleList",
    "MultiheadAttention",
    "NLLLoss",
    "Parameter",
    "RMSNorm",
    "ReLU",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "SmoothL1Loss",
    "Softmax",
    "Softplus",
    "Tanh",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "Upsample",
    "ZeroPad2d",
    "functional",
]
