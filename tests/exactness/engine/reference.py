"""Optimizer formulas in float64, written from the papers; the state is a dict of arrays.

AdamW: arXiv 1711.05101, algorithm 2. Adam: arXiv 1412.6980, algorithm 1, with L2 in the gradient.
AMSGrad: arXiv 1904.09237 (its maximum is over the uncorrected second moment, as in torch). SGD with
momentum and Nesterov: Sutskever et al., ICML 2013, in torch's form. Lion: arXiv 2302.06675,
algorithm 2. Adagrad: Duchi et al., JMLR 12 (2011).
"""

from __future__ import annotations

import numpy as np

State = dict[str, np.ndarray]


def adam(state: State, g: np.ndarray, t: int, *, decoupled: bool, amsgrad: bool, lr: float,
         weight_decay: float, beta1: float, beta2: float, eps: float) -> None:
    p = state["master"]
    if decoupled:
        p = p - lr * weight_decay * p
    else:
        g = g + weight_decay * p
    state["first"] = beta1 * state["first"] + (1 - beta1) * g
    state["second"] = beta2 * state["second"] + (1 - beta2) * g * g
    v = state["second"]
    if amsgrad:
        state["third"] = v = np.maximum(state["third"], v)
    denominator = np.sqrt(v / (1 - beta2**t)) + eps
    state["master"] = p - lr * state["first"] / (1 - beta1**t) / denominator


def sgd(state: State, g: np.ndarray, t: int, *, lr: float, weight_decay: float,
        momentum: float = 0, dampening: float = 0, nesterov: int = 0) -> None:
    p = state["master"]
    g = g + weight_decay * p
    if momentum:
        b = g if t == 1 else momentum * state["first"] + (1 - dampening) * g
        state["first"] = b
        g = g + momentum * b if nesterov else b
    state["master"] = p - lr * g


def lion(state: State, g: np.ndarray, t: int, *, lr: float, weight_decay: float, beta1: float,
         beta2: float) -> None:
    del t
    update = np.sign(beta1 * state["first"] + (1 - beta1) * g)
    state["master"] = state["master"] - lr * (update + weight_decay * state["master"])
    state["first"] = beta2 * state["first"] + (1 - beta2) * g


def adagrad(state: State, g: np.ndarray, t: int, *, lr: float, weight_decay: float, eps: float,
            lr_decay: float = 0) -> None:
    p = state["master"]
    g = g + weight_decay * p
    state["first"] = state["first"] + g * g
    step = lr / (1 + (t - 1) * lr_decay)
    state["master"] = p - step * g / (np.sqrt(state["first"]) + eps)
