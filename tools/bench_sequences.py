"""Owns the rows of the speed table for sequences: recurrent layers, CTC, attention, encoder and CRNN. Must not contain how time is measured."""

import numpy as np
from bench_row import Row, forth_and_back, training, values


def recurrent_rows():
    """One layer in one direction, as many inputs as hidden units, forward and backward."""
    rows = []
    for name, gates in (("LSTM", 4), ("GRU", 3)):
        for steps in (32, 200):
            for hidden in (64, 128, 256):
                for batch in (1, 8, 32):
                    build = forth_and_back(lambda lib, name=name, n=hidden: getattr(lib.libraries()[1], name)(n, n), (steps, batch, hidden))
                    # Two products of [gates hidden, hidden] a step, each twice more in backward.
                    rows.append(Row(f"{name.lower()} batch {batch} hidden {hidden} steps {steps}", build, 1.0, 1.0,
                                    flops=12.0 * steps * batch * gates * hidden**2))
    return rows


def ctc(batch, classes, steps=150, labels=30):
    """Forward and backward from log-probabilities; all frames and 30 labels a sequence."""

    def build(lib):
        logits = values(1, steps, batch, classes)
        log_p = logits - np.log(np.exp(logits).sum(2, keepdims=True))
        targets = np.random.default_rng(2).integers(1, classes, (batch, labels))
        loss, x = lib.function("ctc_loss"), lib.tensor(log_p).requires_grad_()
        rest = lib.tensor(targets), lib.tensor(np.full(batch, steps)), lib.tensor(np.full(batch, labels))

        def run():
            loss(x, *rest).backward()
            x.grad = None

        return run

    return build


def attention(heads, tokens, causal=False):
    def function(lib):
        attend = lib.function("scaled_dot_product_attention")
        return lambda q, k, v: attend(q, k, v, is_causal=causal)

    return forth_and_back(function, *3 * ((2, heads, tokens, 64),))


def encoder(batch, tokens, vocabulary=1000, width=128):
    """Embedding, two layers as torch makes them, and a class of the vocabulary for each token."""
    ids = np.random.default_rng(1).integers(0, vocabulary, (batch, tokens))

    def model(nn):
        layer = nn.TransformerEncoderLayer(width, 4, 512, dropout=0.0, batch_first=True)
        return nn.Sequential(nn.Embedding(vocabulary, width), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
                             nn.Flatten(0, 1), nn.Linear(width, vocabulary))

    return training(model, (ids, np.roll(ids, 1, 1).reshape(-1)), "CrossEntropyLoss")


def crnn(batch, columns, classes=80):
    """Lines of 32 pixels: two stages of convolution, relu and pool, two LSTM layers in both directions, linear, CTC."""
    random = np.random.default_rng(2)
    steps = columns // 4
    image, labels = values(1, batch, 1, 32, columns), random.integers(1, classes, (batch, steps // 4))

    def build(lib):
        library, nn, optim = lib.libraries()
        stages = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
                               nn.MaxPool2d(2))
        lstm, head, loss = nn.LSTM(64 * 8, 128, 2, bidirectional=True), nn.Linear(256, classes), nn.CTCLoss()
        log_softmax, x = lib.function("log_softmax"), library.tensor(image)
        rest = library.tensor(labels), library.tensor(np.full(batch, steps)), library.tensor(np.full(batch, steps // 4))
        optimizer = optim.SGD([*stages.parameters(), *lstm.parameters(), *head.parameters()], lr=0.01)

        def step():
            optimizer.zero_grad()
            y = lstm(stages(x).flatten(1, 2).permute(2, 0, 1))[0]
            loss(log_softmax(head(y), 2), *rest).backward()
            optimizer.step()

        return step

    return build


def sequence_rows():
    rows = [Row(f"ctc batch {batch} classes {classes}", ctc(batch, classes), 2.0, 2.0) for classes in (28, 5000) for batch in (1, 16, 64)]
    for heads in (4, 8):
        # Two products of scores and values forward, five backward, of which one makes the scores again.
        rows += [Row(f"attention {heads} heads {tokens} tokens", attention(heads, tokens), 1.0, 1.0, flops=2 * 2.0 * 7 * heads * tokens**2 * 64)
                 for tokens in (64, 128, 256, 512, 1024)]
    rows.append(Row("attention 8 heads 512 tokens causal", attention(8, 512, True), 1.0, 1.0))
    rows += [Row(f"encoder {batch}x{tokens} tokens", encoder(batch, tokens), 1.7, 1.7, apart=1.1)
             for batch, tokens in ((1, 32), (8, 64), (16, 128))]
    return rows + [Row(f"crnn {batch}x{columns} columns", crnn(batch, columns), 2.0, 2.0, apart=1.1)
                   for batch, columns in ((1, 128), (8, 128), (16, 256))]
