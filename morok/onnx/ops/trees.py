"""Ensembles of trees: all rows walk all trees at once, one level at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from morok import dtype as dt
from morok.errors import FormatError, UnsupportedModel
from morok.onnx.ops.ml import ML, labelled, labels_of, transformed
from morok.onnx.table import T, op
from morok.onnx.types import Array
from morok.onnx.values import Host
from morok.tensor.tensor import Tensor

_MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")


@dataclass
class _Forest:
    """Nodes of all trees in one list; a leaf leads to itself and has a row of weights, one per target."""

    roots: Array
    features: Array
    splits: Array
    modes: Array  # names
    yes: Array
    no: Array
    missing: Array
    weights: Array  # (nodes, targets)
    counts: Array  # whether a node has a weight for a target
    members: dict[int, Array]

    def depth(self) -> int:
        """The length of the longest way; a circle has none."""
        level, seen = set(self.roots.tolist()), 0
        while True:
            below = {int(c) for n in level for c in (self.yes[n], self.no[n]) if c != n}
            if not below:
                return seen
            level, seen = below, seen + 1
            if seen > len(self.yes):
                raise FormatError("the nodes of a tree lead in a circle")

    def leaves(self, x: Tensor) -> Tensor:
        """For each row and tree, the node where it ends."""
        rows = x.shape[0]
        at = Tensor(self.roots).reshape((1, -1)).expand((rows, len(self.roots)))
        for _ in range(self.depth()):
            at = self._next(x, at)
        return at

    def _next(self, x: Tensor, at: Tensor) -> Tensor:
        def of(table: Array) -> Tensor:
            return Tensor(np.ascontiguousarray(table)).index_select(0, at.reshape(-1)).reshape(at.shape)

        value = x.gather(1, of(self.features))
        split = of(self.splits)
        inner = sorted(set(self.modes.tolist()) - {"LEAF"})
        decided: Any = None
        for mode in inner:
            holds = self._compare(mode, value, split, at)
            if decided is None:
                decided = holds
            else:
                decided = of(self.modes == mode).where(holds, decided)
        if self.missing.any():
            decided = decided | (value.isnan() & of(self.missing))
        result: Tensor = decided.where(of(self.yes), of(self.no))
        return result

    def _compare(self, mode: str, a: Tensor, b: Tensor, at: Tensor) -> Tensor:
        if mode == "BRANCH_MEMBER":
            width = max(len(m) for m in self.members.values())
            table = np.full((len(self.yes), width), np.nan, self.splits.dtype)
            for node, values in self.members.items():
                table[node, : len(values)] = values
            sets = Tensor(table).index_select(0, at.reshape(-1)).reshape((*at.shape, width))
            return sets.eq(a.unsqueeze(-1)).any(-1)
        compare: dict[str, Any] = {
            "BRANCH_LEQ": Tensor.le, "BRANCH_LT": Tensor.lt, "BRANCH_GTE": Tensor.ge,
            "BRANCH_GT": Tensor.gt, "BRANCH_EQ": Tensor.eq, "BRANCH_NEQ": Tensor.ne,
        }  # fmt: skip
        if mode not in compare:
            raise UnsupportedModel(f"mode {mode!r} of a tree's node is not known")
        return compare[mode](a, b)  # type: ignore[no-any-return]

    def scores(self, x: Tensor, aggregate: str) -> Tensor:
        at = self.leaves(x)
        shape = (*at.shape, self.weights.shape[1])
        made = Tensor(self.weights).index_select(0, at.reshape(-1)).reshape(shape)
        if aggregate in ("SUM", "AVERAGE"):
            total = made.sum(1)
            return total / len(self.roots) if aggregate == "AVERAGE" else total
        counted = Tensor(self.counts).index_select(0, at.reshape(-1)).reshape(shape)
        far = np.inf if aggregate == "MIN" else -np.inf
        best = counted.where(made, far)
        best = best.min(1) if aggregate == "MIN" else best.max(1)
        return best.isinf().where(0.0, best)


def _given(plain: Any, tensor: Any) -> Array:
    if isinstance(tensor, Host):
        return tensor.array.reshape(-1)
    return np.array(plain if plain is not None else [], np.float32)


def _from_ids(attributes: dict[str, Any], prefix: str, targets: int) -> _Forest:
    """The older way to write trees: nodes have the numbers of their tree and of themselves."""
    keys = list(zip(attributes["nodes_treeids"], attributes["nodes_nodeids"], strict=True))
    number = {key: n for n, key in enumerate(keys)}
    count = len(keys)
    modes = np.array(attributes["nodes_modes"], object)
    yes, no = np.arange(count), np.arange(count)
    children = set()
    for n, (tree, _) in enumerate(keys):
        if modes[n] != "LEAF":
            yes[n] = number[tree, attributes["nodes_truenodeids"][n]]
            no[n] = number[tree, attributes["nodes_falsenodeids"][n]]
            children |= {int(yes[n]), int(no[n])}
    roots: dict[Any, int] = {}
    for n, (tree, _) in enumerate(keys):
        if n not in children:
            roots.setdefault(tree, n)
    splits = _given(attributes.get("nodes_values"), attributes.get("nodes_values_as_tensor"))
    given = _given(attributes.get(f"{prefix}_weights"), attributes.get(f"{prefix}_weights_as_tensor"))
    weights = np.zeros((count, targets), given.dtype)
    counts = np.zeros((count, targets), bool)
    ids = zip(
        attributes[f"{prefix}_treeids"],
        attributes[f"{prefix}_nodeids"],
        attributes[f"{prefix}_ids"],
        given,
        strict=True,
    )
    for tree, node, target, weight in ids:
        weights[number[tree, node], target] += weight
        counts[number[tree, node], target] = True
    missing = np.array(attributes.get("nodes_missing_value_tracks_true") or [0] * count, bool)
    features = np.array(attributes["nodes_featureids"], np.int64)
    return _Forest(
        np.array(list(roots.values())), features, splits, modes, yes, no, missing, weights, counts, {}
    )


def _base(x: Tensor, plain: Any, tensor: Any) -> Tensor:
    base = _given(plain, tensor)
    return x + Tensor(base.astype(x.dtype.numpy)) if len(base) else x


def _float(x: Tensor, forest: _Forest) -> Tensor:
    kind = dt.float64 if forest.splits.dtype == np.float64 else dt.float32
    return x.cast(kind) if x.dtype is not kind else x


@op("TreeEnsembleRegressor", domain=ML)
def tree_ensemble_regressor(
    x: T,
    *,
    aggregate_function: str = "SUM",
    base_values: Any = None,
    base_values_as_tensor: Any = None,
    n_targets: int = 1,
    nodes_falsenodeids: Any,
    nodes_featureids: Any,
    nodes_hitrates: Any = None,
    nodes_hitrates_as_tensor: Any = None,
    nodes_missing_value_tracks_true: Any = None,
    nodes_modes: Any,
    nodes_nodeids: Any,
    nodes_treeids: Any,
    nodes_truenodeids: Any,
    nodes_values: Any = None,
    nodes_values_as_tensor: Any = None,
    post_transform: str = "NONE",
    target_ids: Any,
    target_nodeids: Any,
    target_treeids: Any,
    target_weights: Any = None,
    target_weights_as_tensor: Any = None,
) -> T:
    forest = _from_ids(dict(locals()), "target", n_targets)
    scores = _base(forest.scores(_float(x, forest), aggregate_function), base_values, base_values_as_tensor)
    return transformed(scores, post_transform)


@op("TreeEnsembleClassifier", domain=ML)
def tree_ensemble_classifier(
    x: T,
    *,
    base_values: Any = None,
    base_values_as_tensor: Any = None,
    class_ids: Any,
    class_nodeids: Any,
    class_treeids: Any,
    class_weights: Any = None,
    class_weights_as_tensor: Any = None,
    classlabels_int64s: Any = None,
    classlabels_strings: Any = None,
    nodes_falsenodeids: Any,
    nodes_featureids: Any,
    nodes_hitrates: Any = None,
    nodes_hitrates_as_tensor: Any = None,
    nodes_missing_value_tracks_true: Any = None,
    nodes_modes: Any,
    nodes_nodeids: Any,
    nodes_treeids: Any,
    nodes_truenodeids: Any,
    nodes_values: Any = None,
    nodes_values_as_tensor: Any = None,
    post_transform: str = "NONE",
) -> Any:
    labels = labels_of(classlabels_int64s, classlabels_strings)
    classes = labels.shape[0]
    forest = _from_ids(dict(locals()), "class", classes)
    scores = _base(forest.scores(_float(x, forest), "SUM"), base_values, base_values_as_tensor)
    if (classes == 2 and set(class_ids) == {0}) or (classes == 2 and set(class_ids) == {1}):
        only = scores[:, int(class_ids[0]) : int(class_ids[0]) + 1]  # one score for two classes
        pair = (-only).cat(only, dim=1) if post_transform != "NONE" else (-only + 1).cat(only, dim=1)
        half = 0.0 if post_transform != "NONE" else 0.5
        places = (only.squeeze(1) > half).cast(dt.int64)
        held = labels.tensor()
        if labels.is_text or not isinstance(held, Tensor):
            raise UnsupportedModel("labels that are strings are not computed; encode them as numbers")
        return held.index_select(0, places), transformed(pair, post_transform)
    return labelled(scores, labels), transformed(scores, post_transform)


@op("TreeEnsemble", domain=ML, since=5)
def tree_ensemble(
    x: T,
    *,
    aggregate_function: int = 1,
    leaf_targetids: Any,
    leaf_weights: Any,
    membership_values: Any = None,
    n_targets: int = 1,
    nodes_falseleafs: Any,
    nodes_falsenodeids: Any,
    nodes_featureids: Any,
    nodes_hitrates: Any = None,
    nodes_missing_value_tracks_true: Any = None,
    nodes_modes: Any,
    nodes_splits: Any,
    nodes_trueleafs: Any,
    nodes_truenodeids: Any,
    post_transform: int = 0,
    tree_roots: Any,
) -> T:
    inner, leaves = len(nodes_featureids), len(leaf_targetids)
    leaf = np.arange(inner, inner + leaves)
    yes = np.array([i + inner if l else i for i, l in zip(nodes_truenodeids, nodes_trueleafs, strict=True)])
    no = np.array([i + inner if l else i for i, l in zip(nodes_falsenodeids, nodes_falseleafs, strict=True)])
    modes = np.array([_MODES[m] for m in nodes_modes.array.reshape(-1)] + ["LEAF"] * leaves, object)
    splits = nodes_splits.array.reshape(-1)
    weights = np.zeros((inner + leaves, n_targets), leaf_weights.array.dtype)
    counts = np.zeros(weights.shape, bool)
    weights[leaf, np.array(leaf_targetids)] = leaf_weights.array.reshape(-1)
    counts[leaf, np.array(leaf_targetids)] = True
    members: dict[int, Array] = {}
    if membership_values is not None:
        values = membership_values.array.reshape(-1)
        ends = [*np.flatnonzero(np.isnan(values)).tolist(), len(values)]
        owners = [n for n in range(inner) if modes[n] == "BRANCH_MEMBER"]
        start = 0
        for owner, end in zip(owners, ends, strict=False):
            members[owner] = values[start:end]
            start = end + 1
    missing = np.array((nodes_missing_value_tracks_true or [0] * inner) + [0] * leaves, bool)
    forest = _Forest(
        np.array(tree_roots),
        np.concatenate([np.array(nodes_featureids), np.zeros(leaves, np.int64)]),
        np.concatenate([splits, np.zeros(leaves, splits.dtype)]),
        modes,
        np.concatenate([yes, leaf]),
        np.concatenate([no, leaf]),
        missing,
        weights,
        counts,
        members,
    )
    aggregate = ("AVERAGE", "SUM", "MIN", "MAX")[aggregate_function]
    return transformed(forest.scores(_float(x, forest), aggregate), post_transform)
