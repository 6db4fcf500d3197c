"""Owns the tests of the demo `fashion` on files that the tests write; the real ones are a Debian package, used by hand. Must not need them."""

import gzip

import numpy as np
import pytest

import onemodel as om
from onemodel.demos import fashion


def idx(array):
    head = bytes((0, 0, 8, array.ndim)) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return head + array.astype(np.uint8).tobytes()


def written(path, content):
    path.write_bytes(gzip.compress(content))
    return path


def test_reads_what_stands_there(tmp_path):
    for array in (np.arange(24).reshape(2, 3, 4), np.array([7, 0, 255])):
        found = fashion.read_idx(written(tmp_path / "a.gz", idx(array)), array.shape)
        assert found.dtype == np.uint8 and np.array_equal(found, array)


GOOD = idx(np.arange(24).reshape(2, 3, 4))
HUGE = bytes((0, 0, 8, 3)) + b"\xff" * 12


@pytest.mark.parametrize("content,words", [
    (b"", "begins with 00000803"), (GOOD[:3], "begins with 00000803"), (b"\0\0\x0d\x03" + GOOD[4:], "begins with 00000803, got 00000d03"),
    (b"\0\0\x08\x01" + GOOD[4:], "3 dimensions"), (b"\x08\x03\0\0" + GOOD[4:], "begins with"),
    (GOOD[:10], r"expected dimensions \[2, 3, 4\], got"), (idx(np.zeros((2, 4, 3))), r"expected dimensions \[2, 3, 4\], got \[2, 4, 3\]"),
    (HUGE, r"got \[4294967295, 4294967295, 4294967295\]"), (GOOD[:-1], "expected 24 bytes of elements, got 23"),
    (GOOD[:16], "got 0"), (GOOD + b"\0", "got more"),
], ids=["empty", "short-magic", "float-magic", "rank", "byte-order", "short-sizes", "sizes", "huge", "truncated", "no-elements", "surplus"])
def test_another_file_is_refused(tmp_path, content, words):
    with pytest.raises(ValueError, match=words):
        fashion.read_idx(written(tmp_path / "a.gz", content), (2, 3, 4))


@pytest.mark.parametrize("raw", [b"", GOOD, gzip.compress(GOOD)[:-9], gzip.compress(GOOD)[:20], gzip.compress(GOOD)[:-6] + b"\0" * 6],
                         ids=["empty", "not-packed", "cut", "cut-early", "checksum"])
def test_a_damaged_file_is_refused(tmp_path, raw):
    path = tmp_path / "a.gz"
    path.write_bytes(raw)
    with pytest.raises(ValueError, match="a.gz: "):
        fashion.read_idx(path, (2, 3, 4))


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A folder as the package's, with 20 training and 10 test images: a bright patch whose place is the class."""
    monkeypatch.setattr(fashion, "FOLDER", tmp_path)
    monkeypatch.setattr(fashion, "TRAINING", 20)
    monkeypatch.setattr(fashion, "TEST", 10)
    state = om.default_generator.get_state()
    for kind, count in (("train", 20), ("t10k", 10)):
        labels = np.arange(count) % 10
        images = np.zeros((count, 28, 28))
        for image, label in zip(images, labels, strict=True):
            image[2 * label:2 * label + 6, 8:20] = 250
        written(tmp_path / f"{kind}-images-idx3-ubyte.gz", idx(images))
        written(tmp_path / f"{kind}-labels-idx1-ubyte.gz", idx(labels))
    yield tmp_path
    om.default_generator.set_state(state)


def test_loads_both_sets(small):
    training, test = fashion.load()
    assert training.images.shape == (20, 28, 28) and test.images.shape == (10, 28, 28)
    assert training.images.numpy().max() == np.float32(250) / np.float32(255) and training.labels.tolist() == [*range(10)] * 2
    assert fashion.load(10)[0].images.shape == (10, 28, 28) and fashion.load(10)[1].images.shape == (10, 28, 28)
    written(small / "t10k-labels-idx1-ubyte.gz", idx(np.full(10, 10)))
    with pytest.raises(ValueError, match="labels of 0 to 9, got 10"):
        fashion.load()


def test_the_command_runs(small, capsys):
    assert fashion.main(["--epochs", "1", "--threads", "1"]) == 0
    assert "of 10 articles of clothing that training never saw" in capsys.readouterr().out


def test_without_its_data_it_says_what_installs_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(fashion, "FOLDER", tmp_path / "none")
    assert fashion.main([]) == 1
    assert "apt install dataset-fashion-mnist" in capsys.readouterr().out


def test_a_damaged_set_ends_the_command_with_its_reason(small, capsys):
    written(small / "train-images-idx3-ubyte.gz", b"other")
    assert fashion.main([]) == 1
    assert "train-images-idx3-ubyte.gz: expected an idx file" in capsys.readouterr().out
    (small / "t10k-images-idx3-ubyte.gz").unlink()
    written(small / "train-images-idx3-ubyte.gz", idx(np.zeros((20, 28, 28))))
    assert fashion.main([]) == 1
    assert "t10k-images-idx3-ubyte.gz is missing" in capsys.readouterr().out


@pytest.mark.parametrize("options", [["--images", "150"], ["--images", "60100"], ["--images", "0"]])
def test_wrong_options_end_with_the_usage(options, capsys):
    with pytest.raises(SystemExit) as end:
        fashion.main(options)
    assert end.value.code == 2 and "--images" in capsys.readouterr().err
