"""The page about ONNX, from the table of operators."""

from __future__ import annotations

from onnx import defs

from morok.onnx.operators import FAMILIES
from morok.onnx.table import Operator, rows

_HEAD = """# ONNX

Written by `morok docs` from the table of operators. It needs the package `onnx`: `pip install 'morok[onnx]'`.

```python
import morok.onnx

m = morok.onnx.load("model.onnx")  # a path, bytes or a ModelProto; dims={"batch": 4} fixes an open size
m.inputs, m.outputs  # names, types and sizes
m.missing  # operators that there are not, before anything runs
m(x)  # {output: array}; also m(name=x) and m({"name": x})
m.run(["output"], {"input": x})  # a list, as ONNX Runtime gives it
```

`morok onnx check FILE` lists what a file asks for and what is missing, `morok onnx run FILE --random` runs
it, `morok onnx bench FILE` measures it, beside ONNX Runtime if that is installed. `morok.onnx.backend` is the
interface of ONNX's own test suite; `make test-onnx` runs all of it, and what is not passed is listed with
its reason in `tests/onnx/refusals.py`.

## How a model runs

The nodes are traced into lazy tensors, so that one plan computes as many of them as possible. A plan ends
where an operator has to know values: a shape that was computed from data, the condition of a branch, the
number of elements that are not zero. The values are read, and the next plan begins. Plans are remembered by
the shapes and types that they start on, so that a second call of the same structure compiles nothing.
On the CPU, a call that reads nothing on its way is one native call from its third time on: kernels of all
parts and layers with their tables of addresses, for inputs of the same shapes and the same values where the
host reads such.

- **Sizes.** Arithmetic on shapes is done with numbers while tracing. The first call is compiled for its
  sizes; when other ones come, those that have changed become variables, and the third set compiles nothing.
  Windows slide along such axes; what needs numbers (a sort) is compiled for each set. Where sizes fit each
  other for multiples only (an image that is halved five times, and doubled), variables count in steps of
  what all sizes so far are multiples of. Kernels for
  known sizes are faster, so sizes that have run under variables for as long as a plan takes to compile get
  one of their own. `load(…, symbolic=False)` compiles each set.
- **Constants.** What depends on no input is computed once, at the first call; a batch norm behind a
  convolution becomes its weights.
- **Branches and loops.** A branch whose condition is known is part of the plan; of few numbers both branches
  are computed, and one is chosen; else the condition is read. A loop of few rounds is unrolled; else each
  round replays the compiled body: its number is a variable, as is what it counts for itself, and how long a
  sequence is that it only appends to does not matter. A body that is one plan is called again and again on
  memory that changes hands, also where a state grows or data say when to stop; where no data do, all rounds
  from the same sizes on are one native call when they come again.
- **Recurrent operators** of up to 16 steps are part of the plan; longer ones are one compiled step that is
  run for each, all of them in one native call, so that a long sequence compiles no longer than a short one.
  Weights of a step lie in panels, in the order in which registers take them, once for all calls.
- **Quantised models.** Products of integers are exact. Where the processor multiplies words of four bytes and
  adds the products (`sdot`, `vpdpbusd`), 8-bit integers are packed into such words, and zero points come out
  of the sums, mostly as constants. Elsewhere sums are in float32 as long as they cannot leave the whole
  numbers that it counts (2²⁴, by the bounds of the types and of the weights themselves), in pieces
  otherwise, and added in 32 bits. `DequantizeLinear`, a convolution or product,
  `QuantizeLinear` become one such operator where scales are constants. Kernels read scales and zero points,
  so that layers that differ in nothing else share them. A code is the nearest to the exact result, but where
  that lies within 10⁻⁵ of the middle between two: engines choose differently there, and the layers behind go
  on with it, so int8 outputs of two engines differ by a few codes. Each layer judged by float64 on the codes
  before it, 64 of the 281 million codes of a Whisper encoder are not the nearest (ONNX Runtime: 974, and
  326 without its optimisations). Layers that quantise again and again, and look for their scale themselves,
  make more of it: a recogniser of text with `DynamicQuantizeLinear` before each of 21 convolutions differs
  by 8·10⁻³ after one code of 74 thousand in a first layer was within 1.2·10⁻⁶ of the middle; of its 645
  thousand codes, each engine has two that are not the nearest, and all sums of both are exact. A BERT of
  four layers with random weights, quantised in its attention too, lies 4.7·10⁻² from an evaluation in
  float64 with ONNX Runtime, 3.9·10⁻² without its optimisations, and 3.9·10⁻² here (the largest of three
  inputs); the two ways of ONNX Runtime are 4.7·10⁻² apart.
- **Sequences, optionals, maps, strings** are Python's lists, None, dicts and arrays of objects, on the host.
- **Types.** Integers of 2 and 4 bits and the float8 and float4 types that tensors do not have are held as
  codes; they are converted exactly, and not computed with.
- **Errors** name the node, and the exporter's line where the file has it. An attribute that is not understood
  is an error.
- **Files** may come from anybody: data outside of the model are read from plain files in its folder only,
  sizes have to be there before memory is taken for them, and whatever is wrong is one sentence.

"""


def _versions(found: list[Operator]) -> str:
    parts = [f"{row.since}{'–' + str(row.until) if row.until else ' on'}" for row in found]
    return ", ".join(parts)


def onnx_page() -> str:
    """The page: how to use it, then every operator of every domain."""
    assert FAMILIES
    by_name: dict[tuple[str, str], list[Operator]] = {}
    for row in rows():
        by_name.setdefault((row.domain, row.name), []).append(row)
    text = _HEAD
    for domain in sorted({domain for domain, _ in by_name}):
        names = sorted(name for other, name in by_name if other == domain)
        title = domain or "ai.onnx"
        text += f"## Operators of {title}\n\n| operator | versions | where | note |\n|---|---|---|---|\n"
        for name in names:
            found = by_name[domain, name]
            where = found[-1].function.__module__.removeprefix("morok.onnx.ops.")
            note = next((row.note for row in found if row.note), "")
            text += f"| {name} | {_versions(found)} | `ops/{where}.py` | {note} |\n"
        bodies = sorted(
            s.name
            for s in defs.get_all_schemas()
            if s.domain == domain and (domain, s.name) not in by_name and _has_body(s)
        )
        if bodies:
            text += f"\nAs the graphs that the specification gives: {', '.join(bodies)}.\n"
        text += "\n"
    return text.rstrip() + "\n"


def _has_body(schema: object) -> bool:
    return bool(
        getattr(schema, "has_function", False) or getattr(schema, "has_context_dependent_function", False)
    )
