"""Owns the rows of the speed table: what is timed, its bounds, and the bounds over several rows. Must not contain how time is measured."""

import statistics

import numpy as np
from bench_row import Row, there_and_back, training, values
from bench_sequences import recurrent_rows, sequence_rows


def product_rows():
    squares = [(n, n, n) for n in (64, 128, 256, 512, 1024, 2048)]
    skinny = [(32, 512, 128), (8, 1024, 256), (1, 1024, 1024), (4096, 64, 576), (64, 4096, 576), (128, 128, 4096)]

    def make(m, n, k, form):
        def build(lib):
            # nt: x @ w.T, a layer's forward; tn: g.T @ x, its weight gradient.
            a = lib.tensor(values(1, k, m)).T if form == "tn" else lib.tensor(values(1, m, k))
            b = lib.tensor(values(2, n, k)).T if form == "nt" else lib.tensor(values(2, k, n))
            return lambda: a @ b

        return build

    def row(m, n, k, form="nn"):
        suffix = "" if form == "nn" else f" {form}"
        return Row(f"gemm {m}x{n}x{k}{suffix}", make(m, n, k, form), 1.0, 1.0, flops=2.0 * m * n * k,
                   limit=0.82 if (m, n, k) == (1024, 1024, 1024) else 0.0)

    return [row(*s) for s in (*squares, *skinny)] + [row(*s, form) for s in ((256, 256, 256), (32, 512, 128), (4096, 64, 576))
                                                     for form in ("nt", "tn")]


def elementwise_rows():
    def make(name, n):
        def build(lib):
            x, y = lib.tensor(values(1, n)), lib.tensor(values(2, n))
            function = lib.function(name)
            return (lambda: x + y) if name == "add" else lambda: function(x)

        return build

    rows = []
    for n in (1_000, 100_000, 10_000_000):
        beyond_caches = n == 10_000_000
        for name in ("add", "relu", "gelu", "tanh", "sigmoid", "exp"):
            copied = 4.0 * n * (3 if name == "add" else 2) if beyond_caches else 0.0
            rows.append(Row(f"{name} {n}", make(name, n), 1.0, 0.7, copied=copied, limit=0.85 if beyond_caches else 0.0))
        rows.append(Row(f"sum {n}", make("sum", n), 1.0, 0.5, read=4.0 * n if beyond_caches else 0.0))
    return rows


def chain(lib):
    """100 recorded operations on 16 elements, and their backward pass."""
    x, a, b, g = lib.tensor(values(1, 16)), lib.tensor(values(2, 16)), lib.tensor(values(3, 16)), lib.tensor(values(4, 16))
    x.requires_grad_()

    def step():
        y = x
        for _ in range(50):
            y = y * a
            y = y + b
        y.backward(g)

    return step


def mlp(batch):
    return training(lambda nn: nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)),
                    (values(1, batch, 64), np.arange(batch) % 10), "CrossEntropyLoss")


def conv_net(batch):
    def model(nn):
        return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1),
                             nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64 * 8 * 8, 10))

    return training(model, (values(1, batch, 3, 32, 32), np.arange(batch) % 10), "CrossEntropyLoss")


def decoder(batch):
    def model(nn):
        return nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.ConvTranspose2d(64, 32, 4, stride=2, padding=1), nn.ReLU(),
                             nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1), nn.ReLU(), nn.Upsample(scale_factor=2, mode="bilinear"))

    return training(model, (values(1, batch, 64, 16, 16), values(2, batch, 16, 128, 128)), "MSELoss")


def step_rows():
    small = [Row("chain of 100 operations", chain, 5.0, 5.0), Row("mlp 64-64-10 batch 1", mlp(1), 5.0, 5.0),
             Row("mlp 64-64-10 batch 32", mlp(32), 5.0, 5.0)]
    nets = [Row(f"conv net batch {n}", conv_net(n), 2.0, 2.0, apart=1.1) for n in (1, 8, 64)]
    return small + nets + [Row(f"decoder batch {n}", decoder(n), 2.0, 2.0, apart=1.1) for n in (1, 8)]


# name: (channels in, out, kernel, side of the image, stride, padding, groups, transposed)
CONVOLUTIONS = {
    "3x3 3-32": (3, 32, 3, 32, 1, 1, 1, False), "3x3 32-32": (32, 32, 3, 32, 1, 1, 1, False), "3x3 64-64": (64, 64, 3, 32, 1, 1, 1, False),
    "3x3 128-128": (128, 128, 3, 16, 1, 1, 1, False), "1x1 64-128": (64, 128, 1, 32, 1, 0, 1, False),
    "3x3 depthwise 64": (64, 64, 3, 32, 1, 1, 64, False), "7x7 stride 2 3-64": (3, 64, 7, 64, 2, 3, 1, False),
    "transposed 4x4 stride 2 64-32": (64, 32, 4, 16, 2, 1, 1, True),
}


def convolution_rows():
    def function(transposed, **options):
        def build(lib):
            convolve = lib.function("conv_transpose2d" if transposed else "conv2d")
            return lambda x, w, b: convolve(x, w, b, **options)

        return build

    rows = []
    for name, (before, after, k, side, stride, padding, groups, transposed) in CONVOLUTIONS.items():
        for batch in (1, 16):
            x, bias = values(1, batch, before, side, side), values(3, after)
            w = values(2, *((before, after // groups) if transposed else (after, before // groups)), k, k)

            # A multiply-add for each output and tap; for each input and tap where it is transposed. Backward does that twice.
            out = (before * side**2 if transposed else after * (1 + (side + 2 * padding - k) // stride) ** 2) * batch
            flops = 2.0 * out * k * k * (after if transposed else before) / groups
            convolve = function(transposed, stride=stride, padding=padding, groups=groups)
            rows += [Row(f"conv {name} batch {batch} {way}", build, 1.0, 1.0, flops=flops if way == "forward" else 2 * flops)
                     for way, build in there_and_back(convolve, (x, w, bias))]
    return rows


def plane_rows():
    """Layers that memory bounds, on 64 images of 32 channels: the least traffic is each array once."""
    shape = (64, 32, 32, 32)
    whole = 4.0 * np.prod(shape)
    # Arrays that forward reads and writes; backward: batch norm g, x and dx; relu g, y and dx; pooling g, places and dx.
    layers = {"batch_norm": (lambda nn: nn.BatchNorm2d(32), 2.0, 3.0), "relu": (lambda nn: nn.ReLU(), 2.0, 3.0),
              "max_pool2d": (lambda nn: nn.MaxPool2d(2), 1.25, 1.5)}
    rows = []
    for name, (layer, forth, back) in layers.items():
        for way, build in there_and_back(lambda lib, layer=layer: layer(lib.libraries()[1]), (values(1, *shape),)):
            rows.append(Row(f"{name} 64x32x32x32 {way}", build, 1.0, 1.0, copied=whole * (forth if way == "forward" else back)))
    return rows


def norm_and_loss_rows():
    """What is sums above all, each way; layers of rows as wide as a model's, and losses of a decoder's outputs."""
    planes, rows = (64, 32, 32, 32), (2048, 512)
    layers = {"group_norm": (planes, lambda nn: nn.GroupNorm(8, 32)), "layer_norm": (rows, lambda nn: nn.LayerNorm(512)),
              "rms_norm": (rows, lambda nn: nn.RMSNorm(512)), "batch_norm": (rows, lambda nn: nn.BatchNorm1d(512))}
    losses = {"mse": "MSELoss", "l1": "L1Loss", "huber": "HuberLoss"}
    found = []
    for name, (shape, layer) in layers.items():
        for way, build in there_and_back(lambda lib, layer=layer: layer(lib.libraries()[1]), (values(1, *shape),)):
            found.append(Row(f"{name} {'x'.join(map(str, shape))} {way}", build, 1.0, 1.0))
    for name, loss in losses.items():
        inputs = values(1, 8, 16, 128, 128), values(2, 8, 16, 128, 128)
        for way, build in there_and_back(lambda lib, loss=loss: getattr(lib.libraries()[1], loss)(), inputs):
            found.append(Row(f"{name}_loss 8x16x128x128 {way}", build, 1.0, 1.0))
    return found


ROWS = (*product_rows(), *elementwise_rows(), *convolution_rows(), *plane_rows(), *norm_and_loss_rows(),
        *recurrent_rows(), *sequence_rows(), *step_rows())


# what the rows of a mean have in common -> (their names, the least geometric mean)
MEANS = {"GEMM squares": (tuple(row.name for row in product_rows()[:6]), 1.15),
         "convolutions": (tuple(row.name for row in convolution_rows()), 1.5),
         "recurrent layers": (tuple(row.name for row in recurrent_rows()), 1.5)}


def means(cells):
    """Bounds over several rows: (text, value, target)."""
    found = []
    for threads, mode in dict.fromkeys((c.threads, c.mode) for c in cells):
        for what, (names, target) in MEANS.items():
            ratios = [c.ratio for c in cells if c.row.name in names and (c.threads, c.mode) == (threads, mode) and c.ratio]
            if len(ratios) == len(names):
                found.append((f"geometric mean of the {what}, {threads} thr, {mode}", statistics.geometric_mean(ratios), target))
    return found
