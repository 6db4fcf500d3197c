"""Every family of kernels in a thread whose stack is small: 128 KB are musl's default, and callers may ask for less.

A frame that outgrows the stack ends the process, so all of it runs in a child. Must not check values.
"""

import os
import subprocess
import sys

CODE = """
import sys, threading
import numpy as np
import onemodel as om
from onemodel._kernels import table

threading.stack_size(int(sys.argv[1]))
draw = np.random.default_rng(1)


def tensor(*shape, grad=True):
    t = om.tensor(draw.standard_normal(shape, dtype=np.float32))
    return t.requires_grad_() if grad else t


def product():
    for m, n, k in (300, 300, 300), (7, 300, 500), (3, 200, 900), (2000, 64, 576):
        a, b, c = tensor(m, k), tensor(k, n), tensor(n, k)
        ((a @ b) + (a @ c.T)).sum().backward()
    (tensor(6, 40, 50) @ tensor(6, 50, 30)).sum().backward()


def convolution():
    for channels, out, side, kernel, stride, groups in (16, 32, 20, 3, 1, 1), (3, 16, 33, 5, 2, 1), (32, 32, 12, 3, 1, 32), (64, 64, 9, 1, 1, 1):
        x, w = tensor(2, channels, side, side), tensor(out, channels // groups, kernel, kernel)
        om.max_pool2d(om.conv2d(x, w, tensor(out), stride, kernel // 2, 1, groups), 2).sum().backward()
    om.conv_transpose2d(tensor(2, 16, 9, 9), tensor(16, 8, 3, 3), None, 2).sum().backward()


def recurrent():
    for batch in 1, 20:
        x = tensor(5, batch, 32)
        om.lstm_layer(x, tensor(256, 32), tensor(256, 64), tensor(256), tensor(256))[0].sum().backward()
        om.gru_layer(x, tensor(192, 32), tensor(192, 64), tensor(192), tensor(192))[0].sum().backward()


def attention():
    for causal in False, True:
        om.scaled_dot_product_attention(tensor(2, 4, 90, 32), tensor(2, 4, 90, 32), tensor(2, 4, 90, 32), is_causal=causal).sum().backward()


def losses():
    om.mse_loss(tensor(120, 130).T, tensor(130, 120)).backward()
    om.mse_loss(tensor(120, 130).T, tensor(120, 130).T).backward()
    om.cross_entropy(tensor(300, 50), om.tensor(draw.integers(0, 50, 300))).backward()
    log_probs = om.log_softmax(tensor(40, 3, 12), 2)
    om.ctc_loss(log_probs, om.tensor(draw.integers(1, 12, (3, 9))), (40, 40, 40), (9, 9, 9)).backward()


def norms():
    om.layer_norm(tensor(200, 300), (300,), tensor(300), tensor(300)).sum().backward()
    (tensor(200, 300).std(0).sum() + tensor(200, 300).std(1).sum()).backward()
    om.group_norm(tensor(3, 8, 20, 20), 4, tensor(8), tensor(8)).sum().backward()
    om.batch_norm(tensor(16, 8, 9, 9), om.zeros(8), om.ones(8), tensor(8), tensor(8), True).sum().backward()


def elements():
    x, y = tensor(300, 310), tensor(310, 300)
    ((x * y.T).exp() + x.tanh()).sum(0).sum().backward()
    x.amax(0).sum().backward()
    om.softmax(tensor(90, 80).T, 0).sum().backward()
    x.sin().mean().backward()


def run(mode, work, errors):
    try:
        with om.arithmetic(mode):
            work()
    except Exception as e:
        errors.append(e)


for isa in om.available_isas():
    for count, piece in (1, 32768), (2, 64):
        om.set_num_threads(count)
        table.set_smallest_piece(piece)
        for mode in "fast", "exact":
            for work in product, convolution, recurrent, attention, losses, norms, elements:
                print(isa, count, mode, work.__name__, flush=True)
                errors = []
                with om.use_isa(isa):
                    t = threading.Thread(target=run, args=(mode, work, errors))
                    t.start()
                    t.join()
                if errors:
                    raise errors[0]
print("done")
"""


def test_every_family_of_kernels():
    done = subprocess.run([sys.executable, "-c", CODE, "131072"], env=os.environ, capture_output=True, text=True, timeout=300)
    last = done.stdout.strip().splitlines()[-1:]
    assert done.returncode == 0 and last == ["done"], f"ended with {done.returncode} in {last}: {done.stderr[-2000:]}"
