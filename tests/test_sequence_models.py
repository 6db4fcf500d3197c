"""Owns the tests of what is special in the reference models for sequences: CTC's values and gradients against PyTorch's, attention's key bias.

Must not contain a model, nor what is asked of every model, which is test_models.py's.
"""

import models
import numpy as np
import pytest
from registry_cases import paths

import onemodel as om

FRAMES = 12


def losses(kept):
    """Losses of ctc.safetensors' sequences by name, and gradients of the logits and the log-probabilities where nothing is infinite."""
    found = {}
    for reduction in ("none", "mean", "sum"):
        for zero in (False, True):
            logits = kept["logits"].detach().requires_grad_()
            log_p = om.log_softmax(logits, 2)
            log_p.retain_grad()
            loss = om.ctc_loss(log_p, kept["targets"], kept["input_lengths"], kept["target_lengths"], 0, reduction, zero)
            found[reduction + ".zero_infinity" * zero] = loss.detach().numpy()
            if zero:
                loss.sum().backward()
                found |= {f"grad.logits.{reduction}": logits.grad.numpy(), f"grad.log_p.{reduction}": log_p.grad.numpy(),
                          f"log_p.{reduction}": log_p.detach().numpy()}
    return found


@pytest.mark.parametrize("column,gradient", [("torch", 3e-6), ("truth", 2e-7)])
def test_ctc_is_the_oracles(column, gradient):
    """Losses within 1e-5 and gradients of logits within 1e-6 must hold; torch's own gradients, in float32, are further from the truth than ours."""
    parts = models.oracle("ctc")
    wanted = {key: value.numpy() for key, value in parts[column].items()}
    worst = {"loss": 0.0, "gradient": 0.0}
    for isa, mode, threads in paths(threads=(1, 2)):
        found = losses(parts["input"])
        for key, value in wanted.items():
            if key.startswith("grad.log_p"):
                continue
            ours = found[key]
            assert np.array_equal(np.isinf(ours), np.isinf(value)), (key, isa, mode)
            if key.startswith("grad."):
                error = float(abs(ours - value).max())
                worst["gradient"] = max(worst["gradient"], error)
                assert error <= gradient, (key, error, isa, mode, threads)
            else:
                ours, value = ours[np.isfinite(value) & (value != 0)], value[np.isfinite(value) & (value != 0)]
                error = float((abs(ours - value) / value).max(initial=0.0))
                worst["loss"] = max(worst["loss"], error)
                assert error <= 3e-7, (key, error, isa, mode, threads)
    print("ctc", column, worst)


def test_a_sequence_without_an_alignment_is_infinite_or_nothing():
    parts = models.oracle("ctc")
    found = losses(parts["input"])
    assert np.isinf(found["none"]).tolist() == [False, False, False, False, True]
    assert np.isposinf(found["mean"]) and np.isposinf(found["sum"])
    assert found["none.zero_infinity"][4] == 0 and not found["grad.logits.none"][:, 4].any()
    assert found["none.zero_infinity"][:4].tobytes() == found["none"][:4].tobytes()


def test_the_raw_gradient_differs_from_torchs_by_the_softmax():
    """torch returns p - posterior for the log-probabilities, the derivative is -posterior; a log-softmax in front takes p away again."""
    parts = models.oracle("ctc")
    found, truth = losses(parts["input"]), {key: value.numpy() for key, value in parts["truth"].items()}
    frames = parts["input"]["input_lengths"].numpy()
    inside = np.arange(FRAMES)[:, None] < np.where(np.isinf(truth["none"]), 0, frames)     # where there is an alignment
    share = {"none": 1.0, "sum": 1.0, "mean": 1 / (5 * np.maximum(parts["input"]["target_lengths"].numpy(), 1))}
    for reduction, scale in share.items():
        term = np.exp(found[f"log_p.{reduction}"]) * inside[..., None] * np.reshape(scale, (1, -1, 1))
        ours, theirs = found[f"grad.log_p.{reduction}"], truth[f"grad.log_p.{reduction}"]
        assert abs(theirs - ours).max() > 0.1 * abs(theirs).max()
        assert abs(ours + term - theirs).max() <= 1e-6, reduction
        assert ours.max() <= 0.0  # minus a probability


@pytest.mark.parametrize("column", ["ours", "torch"])
def test_the_bias_of_keys_has_no_gradient(column):
    """It moves all scores of a query alike: what is there is rounding, below 1e-5 of the largest gradient."""
    wanted = {key: value.numpy() for key, value in models.oracle("encoder")["torch"].items()}
    for _ in paths(threads=(1, 2)) if column == "ours" else (None,):
        gradients = wanted
        if column == "ours":
            model, inputs = models.made("encoder")
            model(**inputs).backward()
            gradients = {f"grad.{key}": p.grad.numpy() for key, p in model.named_parameters()}
        largest = max(abs(value).max() for key, value in gradients.items() if key.startswith("grad."))
        for layer in range(2):
            query, key, value = np.split(gradients[f"grad.layers.{layer}.self_attn.in_proj_bias"], 3)
            assert abs(key).max() <= 1e-5 * largest and abs(query).max() > 1e-3 * largest < abs(value).max()
