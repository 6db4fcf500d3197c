"""Owns the tests of tensor files: what comes back, what a crash or an error leaves behind, and what hand-made files may not do."""

import json
import math
import os
import pickle
import stat
import struct
import subprocess
import sys

import numpy as np
import pytest

import onemodel as om
from onemodel import io


def listed(folder):
    return sorted(p.name for p in folder.iterdir())


SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, 1e-45, 3.4e38], np.float32)
NAN_WITH_PAYLOAD = np.array([0x7FC0_1234, 0xFF80_0001], np.uint32).view(np.float32)
TENSORS = {
    "special": om.tensor(np.concatenate([SPECIAL, NAN_WITH_PAYLOAD])),
    "scalar": om.tensor(2.5),
    "empty": om.zeros(0, 3),
    "int32": om.tensor([-(2**31), 2**31 - 1], dtype=om.int32),
    "int64": om.tensor([-(2**63), 2**63 - 1]),
    "uint8": om.tensor([[0, 255]], dtype=om.uint8),
    "bool": om.tensor([True, False]),
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_comes_back_to_the_bit(name, tmp_path):
    om.save({"t": TENSORS[name]}, tmp_path / "f")
    back = om.load(tmp_path / "f")["t"]
    assert (back.shape, back.dtype, back.sha256()) == (TENSORS[name].shape, TENSORS[name].dtype, TENSORS[name].sha256())


def test_a_payload_would_be_missed_if_digests_ignored_it():
    changed = TENSORS["special"].numpy().copy().view(np.uint32)
    changed[-1] ^= 1
    assert om.tensor(changed.view(np.float32)).sha256() != TENSORS["special"].sha256()


VIEWS = {"T": lambda t: t.T, "cut": lambda t: t[:, 1:3], "flip": lambda t: t.flip(1), "expand": lambda t: t[0].expand(5, 4)}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_views_are_saved_by_their_values(view, tmp_path):
    t = view(om.arange(12, dtype=om.float32).reshape(3, 4))
    om.save({"t": t}, tmp_path / "f")
    assert om.load(tmp_path / "f")["t"].tolist() == t.tolist()


def test_nested_values_come_back_as_they_were(tmp_path):
    state = {"model": {"0.weight": om.ones(2, 2)}, "state": {0: {"momentum_buffer": om.zeros(3)}, 3: {"step": 7}}, "lr": 0.1, "tiny": 5e-324,
             "inf": math.inf, "nothing": None, "flag": True, "betas": (0.9, 0.999), "empty": {}, "names": ["a", ["b", om.tensor([1])]],
             "big": 2**200, "text": "ä\n"}
    om.save(state, tmp_path / "f")
    back = om.load(tmp_path / "f")

    def plain(value):
        if isinstance(value, om.Tensor):
            return value.sha256()
        if isinstance(value, dict):
            return {(type(k), k): plain(v) for k, v in value.items()}
        return type(value)(map(plain, value)) if isinstance(value, (list, tuple)) else (type(value), value)

    assert plain(back) == plain(state)
    assert list(back) == list(state)


def test_a_flat_state_is_a_plain_safetensors_file(tmp_path):
    from safetensors.numpy import load_file

    om.save(om.nn.Linear(3, 2).state_dict(), tmp_path / "f")
    assert {name: a.shape for name, a in load_file(tmp_path / "f").items()} == {"weight": (2, 3), "bias": (2,)}
    header = (tmp_path / "f").read_bytes()[8:]
    assert b"__metadata__" not in header


def test_loaded_tensors_are_the_pools(tmp_path):
    om.save({"t": om.ones(1000)}, tmp_path / "f")
    before = om.pool_stats()
    t = om.load(tmp_path / "f")["t"]
    assert (om.pool_stats() - before).outstanding_blocks == 1
    t.add_(1)  # writable, and no view of the file
    assert om.load(tmp_path / "f")["t"].tolist() == [1.0] * 1000
    del t
    assert (om.pool_stats() - before).outstanding_blocks == 0


@pytest.mark.parametrize(("state", "error", "message"), [
    ([om.ones(1)], TypeError, "expected a dict"),
    ({"a": object()}, TypeError, "a: expected a Tensor"),
    ({"a": {"b": {1.5: 1}}}, TypeError, "a.b: keys must be str or int"),
    ({"a": {"b": om.ones(1)}, "a.b": om.ones(1)}, ValueError, "two tensors are named 'a.b'"),
    ({"__metadata__": om.ones(1)}, ValueError, "__metadata__"),
    ({"a": np.ones(3)}, TypeError, "a: expected a Tensor"),
])
def test_what_cannot_be_saved_is_named_and_leaves_the_old_file(state, error, message, tmp_path):
    om.save({"old": om.ones(1)}, tmp_path / "f")
    with pytest.raises(error, match=message):
        om.save(state, tmp_path / "f")
    assert listed(tmp_path) == ["f"] and list(om.load(tmp_path / "f")) == ["old"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_an_error_while_writing_leaves_the_old_file_alone(call, tmp_path, monkeypatch):
    om.save({"old": om.ones(1)}, tmp_path / "f")

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(io.os, call, full)
    with pytest.raises(OSError, match="No space"):
        om.save({"new": om.ones(1)}, tmp_path / "f")
    assert listed(tmp_path) == ["f"] and list(om.load(tmp_path / "f")) == ["old"]


def test_a_process_killed_while_writing_leaves_the_old_file(tmp_path):
    om.save({"old": om.ones(1)}, tmp_path / "f")
    code = "import os, sys, onemodel as om\nos.replace = lambda *a: os.kill(os.getpid(), 9)\nom.save({'new': om.ones(1)}, sys.argv[1])"
    assert subprocess.run([sys.executable, "-c", code, tmp_path / "f"]).returncode == -9
    assert list(om.load(tmp_path / "f")) == ["old"]


def test_the_content_is_on_the_disk_before_it_gets_the_name(tmp_path, monkeypatch):
    order = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(io.os, "fsync", lambda handle: (order.append("dir" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file"), sync(handle))[1])
    monkeypatch.setattr(io.os, "replace", lambda *paths: (order.append("name"), replace(*paths))[1])
    om.save({"t": om.ones(1)}, tmp_path / "f")
    assert order == ["file", "name", "dir"]


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_a_new_file_has_the_rights_that_the_umask_leaves(mask, tmp_path):
    old = os.umask(mask)
    try:
        om.save({"t": om.ones(1)}, tmp_path / "f")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o666 & ~mask


def test_a_replaced_file_keeps_its_rights_and_a_link_stays_a_link(tmp_path):
    om.save({"t": om.ones(1)}, tmp_path / "f")
    (tmp_path / "f").chmod(0o640)
    (tmp_path / "link").symlink_to("f")
    om.save({"t": om.zeros(1)}, tmp_path / "link")
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o640
    assert (tmp_path / "link").is_symlink() and om.load(tmp_path / "f")["t"].tolist() == [0.0]


def test_a_name_without_a_folder_is_in_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    om.save({"t": om.ones(1)}, "f")
    assert listed(tmp_path) == ["f"]


def test_paths_that_cannot_be_read_or_written(tmp_path):
    with pytest.raises(FileNotFoundError):
        om.load(tmp_path / "none")
    with pytest.raises(IsADirectoryError):
        om.load(tmp_path)
    with pytest.raises(FileNotFoundError):
        om.save({"t": om.ones(1)}, tmp_path / "no_folder" / "f")


# -- hand-made files (edge case I05) --


def file_of(header, data=b"\0" * 16, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype="F32", shape=(4,), offsets=(0, 16)):
    return {"t": {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}}


BAD = {
    "nothing": b"",
    "cut_length": b"\1\2\3",
    "length_near_2_64": file_of(entry(), length=2**64 - 8),
    "length_over_100_mb": file_of(entry(), length=100_000_001),
    "length_over_file": file_of(entry(), length=10_000),
    "length_0": file_of(b"", length=0),
    "not_json": file_of(b"{not json"),
    "not_utf8": file_of(b'{"\xff\xfe": 1}'),
    "a_list": file_of(b"[]"),
    "no_dtype": file_of({"t": {"shape": [4], "data_offsets": [0, 16]}}),
    "unknown_dtype": file_of(entry("F33")),
    "shape_larger_than_offsets": file_of(entry(shape=(1024, 1024))),
    "shape_smaller_than_offsets": file_of(entry(shape=(3,))),
    "shape_wraps_to_0": file_of(entry(shape=(2**32, 2**32), offsets=(0, 0)), b""),
    "shape_wraps_to_16_bytes": file_of(entry(shape=(2**62 + 1, 4))),
    "negative_size": file_of(entry(shape=(-4,))),
    "size_1_and_a_half": file_of(entry(shape=(1.5,))),
    "begin_after_end": file_of(entry(offsets=(16, 0))),
    "offsets_behind_the_file": file_of(entry(offsets=(16, 32))),
    "offsets_near_2_64": file_of(entry(offsets=(2**64 - 16, 2**64))),
    "gap": file_of(entry(offsets=(4, 20)), b"\0" * 20),
    "data_nobody_has": file_of(entry(), b"\0" * 20),
    "data_cut": file_of(entry(), b"\0" * 12),
    "overlap": file_of({"a": entry()["t"], "b": entry()["t"]}),
    "float64": file_of(entry("F64", (2,))),
    "float16": file_of(entry("F16", (8,))),
    "int8": file_of(entry("I8", (16,))),
    "a_pickle": pickle.dumps({"t": 1}),
}


@pytest.mark.parametrize("name", BAD)
def test_I05_a_hand_made_file_is_refused(name, tmp_path):
    (tmp_path / "f").write_bytes(BAD[name])
    before = om.pool_stats()
    with pytest.raises(ValueError, match="load: .*f"):
        om.load(tmp_path / "f")
    assert (om.pool_stats() - before).outstanding_blocks == 0


def test_I05_the_same_file_without_a_fault_is_read(tmp_path):
    (tmp_path / "f").write_bytes(file_of(entry(), struct.pack("<4f", 1, 2, 3, 4)))
    assert om.load(tmp_path / "f")["t"].tolist() == [1, 2, 3, 4]


def test_a_made_up_bool_is_true_or_false(tmp_path):
    (tmp_path / "f").write_bytes(file_of(entry("BOOL", (4,), (0, 4)), bytes([0, 1, 2, 255])))
    assert om.load(tmp_path / "f")["t"].numpy().view(np.uint8).tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize("text", [
    "", "{}", "[]", '"t"', "3", '["tensor", "t"]', '["dict", ["a", ["tensor", "nowhere"]]]', '["dict", ["a", ["tensor"]]]', '["dict", ["a"]]',
    '["dict", [["a"], 1]]', '["dict", ["a", {"b": 1}]]', '["eval", "1"]', '["dict", 3]', '["list"]', "[" * 100_000 + "]" * 100_000,
], ids=lambda text: text[:20] or "nothing")
def test_a_damaged_description_of_nested_values_is_refused(text, tmp_path):
    header = {"__metadata__": {io.STRUCTURE: text}, **entry()}
    (tmp_path / "f").write_bytes(file_of(header))
    with pytest.raises(ValueError, match="load: .*description of nested values is damaged"):
        om.load(tmp_path / "f")


def test_what_is_heavy_is_imported_only_when_it_is_asked_for():
    code = "import sys, onemodel as om; assert {'nn', 'save', 'training'} <= set(dir(om)); " \
           "sys.exit(any(m.startswith(('safetensors', 'onemodel.nn', 'onemodel.io', 'json', 'tqdm')) for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    with pytest.raises(AttributeError, match="no attribute 'nnn'"):
        _ = om.nnn


def test_a_state_that_holds_itself_is_refused(tmp_path):
    state = {"a": 1}
    state["self"] = state
    with pytest.raises(ValueError, match="contains itself"):
        om.save(state, tmp_path / "x.safetensors")
    assert list(tmp_path.iterdir()) == []
