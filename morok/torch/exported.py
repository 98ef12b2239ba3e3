"""Programs of `torch.export`: loaded, compiled by the same table, called like the module that they were."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from typing import Any, final

import torch

from morok.errors import ArgumentError, FormatError
from morok.torch.compiled import Compiled
from morok.torch.decompositions import decompositions
from morok.torch.options import Options
from morok.torch.private import tree_flatten, tree_unflatten
from morok.torch.table import lookup

_PARAMETERS = ("PARAMETER",)
_STATE = ("PARAMETER", "BUFFER", "CONSTANT_TENSOR")


def load(program: Any, *, mode: str | None = None, options: dict[str, Any] | None = None) -> ExportedModel:
    """An exported program, or the `.pt2` file of one, as a model that morok computes.

    >>> import torch
    >>> exported = torch.export.export(torch.nn.Linear(2, 3), (torch.ones(1, 2),))
    >>> load(exported)(torch.ones(1, 2)).shape
    torch.Size([1, 3])
    """
    if isinstance(program, str | os.PathLike):
        try:
            with warnings.catch_warnings():  # some releases warn of how they read the file themselves
                warnings.filterwarnings("ignore", message="The given buffer is not writable")
                program = torch.export.load(program)
        except Exception as error:  # zip's, JSON's, pickle's, torch's own: it is another kind of file
            raise FormatError(f"{program} is no file that torch.export.save has written: {error}") from error
    if not isinstance(program, torch.export.ExportedProgram):
        kind = type(program).__name__
        raise ArgumentError(f"an ExportedProgram or the path of a .pt2 file is wanted, not a {kind}")
    return ExportedModel(program, Options.of(mode, options))


@final
class ExportedModel:
    """A compiled program with its state: what it learns, and what it remembers."""

    def __init__(self, program: Any, options: Options) -> None:
        table = torch.export.default_decompositions()
        for target in list(table.keys()):
            if lookup(target) is not None:
                table.pop(target)
        table.update(decompositions())
        self.program = program.run_decompositions(table)
        self._signature = self.program.graph_signature
        self._in_spec, self._out_spec = self.program.call_spec.in_spec, self.program.call_spec.out_spec
        held = {**self.program.state_dict, **self.program.constants}
        self._state: dict[str, Any] = {
            spec.target: held[spec.target] for spec in self._signature.input_specs if spec.kind.name in _STATE
        }
        self._parameters = [s.target for s in self._signature.input_specs if s.kind.name in _PARAMETERS]
        self._compiled = Compiled(self.program.graph_module, (), options)

    # --- its state

    def state_dict(self) -> dict[str, Any]:
        """Parameters and buffers by their names; these are the tensors themselves."""
        kept = set(self.program.state_dict)
        return {name: value for name, value in self._state.items() if name in kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Other values for parameters and buffers; every name must be one of its own, in its shape."""
        own = self.state_dict()
        if set(own) != set(state):
            wrong = sorted(set(own) ^ set(state))[0]
            raise ArgumentError(f"{wrong!r} is {'missing' if wrong in own else 'not in this model'}")
        for name, value in state.items():
            if tuple(value.shape) != tuple(own[name].shape):
                raise ArgumentError(
                    f"{name!r} has shape {tuple(own[name].shape)}, what is given {tuple(value.shape)}"
                )
        with torch.no_grad():
            for name, value in state.items():
                own[name].copy_(value)

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        return ((name, self._state[name]) for name in self._parameters)

    def parameters(self) -> Iterator[Any]:
        return (self._state[name] for name in self._parameters)

    @property
    def fallbacks(self) -> list[str]:
        """What torch computes, because morok cannot."""
        return [str(node.target) for node in self._compiled.fallbacks]

    # --- running

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes for its arguments, without a gradient."""
        user = self._user_inputs(args, kwargs)
        taken = iter(user)
        given = [
            self._state[spec.target] if spec.kind.name in _STATE else next(taken)
            for spec in self._signature.input_specs
        ]
        with torch.no_grad():
            made = self._compiled([v.detach() if isinstance(v, torch.Tensor) else v for v in given])
            return self._outputs(made, user)

    def _user_inputs(self, args: Any, kwargs: Any) -> list[Any]:
        flat, spec = tree_flatten((args, kwargs))
        if spec != self._in_spec:
            # keywords may come in any order
            order = {k: kwargs[k] for k in self._in_spec.child(1).context if k in kwargs}
            flat, spec = tree_flatten((args, order if len(order) == len(kwargs) else kwargs))
        if spec != self._in_spec:
            raise ArgumentError("arguments come in the structure in which the program was exported")
        nodes = [
            node
            for node, s in zip(self._compiled.placeholders, self._signature.input_specs, strict=True)
            if s.kind.name == "USER_INPUT"
        ]
        for number, (value, node) in enumerate(zip(flat, nodes, strict=True)):
            _require(value, node.meta.get("val"), number)
        return list(flat)

    def _outputs(self, made: list[Any], user: list[Any]) -> Any:
        results = []
        names = [s.arg.name for s in self._signature.input_specs if s.kind.name == "USER_INPUT"]
        for spec, value in zip(self._signature.output_specs, made, strict=True):
            kind = spec.kind.name
            if kind in ("BUFFER_MUTATION", "PARAMETER_MUTATION"):
                self._state[spec.target].copy_(value)
            elif kind == "USER_INPUT_MUTATION":
                user[names.index(spec.target)].copy_(value)
            elif kind != "TOKEN":
                results.append(value)
        return tree_unflatten(results, self._out_spec)


def _require(value: Any, expected: Any, number: int) -> None:
    if not isinstance(expected, torch.Tensor):
        if isinstance(expected, bool | int | float) and value != expected:
            raise ArgumentError(
                f"argument {number} was {expected} when the program was exported, not {value}"
            )
        return
    if not isinstance(value, torch.Tensor) or value.dtype != expected.dtype or value.ndim != expected.ndim:
        raise ArgumentError(f"argument {number} is a tensor of {_named(expected)}, not {_named(value)}")
    for axis, (own, size) in enumerate(zip(value.shape, expected.shape, strict=True)):
        if isinstance(size, int):
            if own != size:
                raise ArgumentError(f"axis {axis} of argument {number} has size {size}, not {own}")
            continue
        found = size.node.shape_env.bound_sympy(size.node.expr)
        if not found.lower <= own <= found.upper:
            raise ArgumentError(f"axis {axis} of argument {number} lies in {found}, so it cannot be {own}")


def _named(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} with {value.ndim} axes"
    return type(value).__name__
