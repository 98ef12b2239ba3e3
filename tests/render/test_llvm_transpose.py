"""Vectors that are turned: the network is right for every width, and machine code needs nothing beside it."""

from __future__ import annotations

import re

import pytest

from morok.codegen.pipeline import lower
from morok.device.cpu.device import program_of
from morok.device.cpu.llvm import compile_assembly
from morok.ir.ops import Ops
from morok.machine.files import load, source
from morok.optimize.heuristics.apply import optimize
from morok.render.llvm.transpose import transposed
from tests.optimize.kernels import interpret, kernel_of, native, same
from tests.schedule import graphs as g


@pytest.mark.parametrize("lanes", [4, 8, 16, 32])
@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
def test_lanes_become_vectors(lanes: int, itemsize: int) -> None:
    """A network of log2(n) steps, each of n shuffles."""
    rows = {f"r{i}": [(i, lane) for lane in range(lanes)] for i in range(lanes)}
    begun = list(rows)

    def shuffle(x: str, y: str, picked: list[int]) -> str:
        both = rows[x] + rows[y]
        name = f"x{len(rows)}"
        rows[name] = [both[i] for i in picked]
        return name

    found = transposed(begun, itemsize, shuffle)
    assert [rows[name] for name in found] == [[(i, lane) for i in range(lanes)] for lane in range(lanes)]
    assert len(rows) - lanes == lanes * (lanes.bit_length() - 1)


@pytest.mark.parametrize(("name", "most"), [("avx512", 150), ("avx2", 60)])
def test_turned_operands_are_few_instructions(name: str, most: int) -> None:
    """Blocks of 16 x 16 and of 8 x 8. As insertions they took three times as many, and the stack."""
    ast = kernel_of(g.contiguous(g.transpose(g.tensor(512, 512), 1, 0)))
    text = program_of(ast, load(name), optimize).text
    assembly = compile_assembly(text, source(name).processor)
    shuffles = re.findall(r"\bv(?:unpck|perm|shuf|insert|extract|blend|pblend|movlh|movhl)\w*", assembly)
    assert 16 < len(shuffles) <= most and "insertelement" not in text


def test_lanes_of_turned_rows_are_not_written() -> None:
    """Whole rows are turned, and nobody asks for an element of one: 256 in a block."""
    ast = kernel_of(g.contiguous(g.transpose(g.tensor(512, 512), 1, 0)))
    linear = lower(optimize(ast, load("avx512")), load("avx512"))
    assert sum(node.op is Ops.GEP for node in linear.src) <= 16
    assert "extractelement" not in program_of(ast, load("avx512"), optimize).text
    ast = kernel_of(g.matmul(g.tensor(64, 96), g.transpose(g.tensor(64, 96), 1, 0)))
    for name in ("avx512", "neoverse-n1"):
        text = program_of(ast, load(name), optimize).text
        made = re.findall(r"(%x\d+) = extractelement", text)
        assert all(len(re.findall(rf"{x}\b", text)) > 1 for x in made)


def test_turned_operands_keep_the_answer() -> None:
    for left, right in (((8, 96), (64, 96)), ((21, 48), (50, 48))):
        ast = kernel_of(g.matmul(g.tensor(*left), g.transpose(g.tensor(*right), 1, 0)))
        same(native(optimize(ast, load("neoverse-n1"))), interpret(ast))
    turned = kernel_of(g.contiguous(g.transpose(g.tensor(37, 50), 1, 0)))
    same(native(optimize(turned, load("neoverse-n1"))), interpret(turned))
