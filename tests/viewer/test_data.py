"""What a page holds: kernels, their stages and code with places, plans, reasons, proofs."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import morok
from morok import Tensor, knobs
from morok.viewer.columns import Column, from_bytes, to_bytes
from tests.viewer.recorded import PRODUCT, SOFTMAX, data_of, record

# what is kept as 192 rows of 32 is read as 96 of 64: its place is (r1*2 + r0//32)*32 + r0%32, or r1*64 + r0
MODULO = """import numpy as np
from morok import Tensor
x = Tensor(np.ones((64, 96), np.float32))
y = (x.reshape(32, 192).T.contiguous().reshape(96, 64).T + x).realize()
z = ((x + 1).reshape(32, 192).T.contiguous().reshape(96, 64).T * x).realize()
"""
Pages = dict[str, tuple[dict[str, Any], list[dict[str, Any]]]]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Pages:
    folder = tmp_path_factory.mktemp("pages")
    return {
        "softmax": data_of(record(folder, SOFTMAX)),
        "product": data_of(record(folder, PRODUCT, name="product.py")),
        "emulated": data_of(record(folder, SOFTMAX, "EMULATOR", "emulated.py")),
    }


def nodes(chunk: dict[str, Any]) -> list[tuple[str, tuple[int, ...], tuple[int, int] | None]]:
    """The table of a chunk, read as the page reads it: op, sources, place."""
    graphs = chunk["graphs"]
    ops, _, _, at = graphs["kinds"]
    found, next_ = [], 0
    for own, (kind, count) in enumerate(zip(graphs["kind"], graphs["counts"], strict=True)):
        before, src = own, []
        for distance in graphs["src"][next_ : next_ + count]:
            before -= distance
            src.append(before)
        next_ += count
        place = tuple(graphs["places"][at[kind]]) if at[kind] >= 0 else None
        found.append((graphs["strings"][ops[kind]], tuple(src), place))
    return found


def test_numbers_survive_the_way_to_a_page() -> None:
    data = {
        "a": Column([0, -1, 2**31 - 1, -(2**31), 300]),
        "b": ["x", {"c": Column()}],
        "d": [[1, 2], None, "ü"],
    }
    assert from_bytes(to_bytes(data)) == {
        "a": [0, -1, 2**31 - 1, -(2**31), 300],
        "b": ["x", {"c": []}],
        "d": data["d"],
    }


@pytest.mark.parametrize("name", ["softmax", "product", "emulated"])
def test_the_graphs_are_whole(pages: Pages, name: str) -> None:
    _, chunks = pages[name]
    for chunk in chunks:
        table = nodes(chunk)
        assert all(0 <= s < own for own, (_, src, _) in enumerate(table) for s in src)
        for stage in chunk["stages"]:
            for root in (stage["before"], stage["after"]):
                assert root == -1 or table[root][0] in ("SINK", "LINEAR")
            for step in stage["steps"]:
                assert len(step.get("rules", ())) == len(step.get("old", ())) == len(step.get("new", ()))


def test_stages_lead_from_the_graph_to_the_list(pages: Pages) -> None:
    index, chunks = pages["softmax"]
    (kernel,) = index["kernels"]
    stages = chunks[kernel["chunk"]]["stages"]
    assert chunks[kernel["graph"]]["stages"][0]["number"] == "1.1"
    assert stages[0]["name"] == "cut into kernels"
    own = [
        s for s in stages if s["number"].rstrip("abcn").isdecimal() and int(s["number"].rstrip("abcn")) >= 8
    ]
    for one, following in pairwise(own):
        assert one["after"] == following["before"]
    table = nodes(chunks[kernel["chunk"]])
    assert (
        table[stages[-1]["after"]][0] == "LINEAR"
        and chunks[kernel["chunk"]]["list"]["node"] == stages[-1]["after"]
    )
    assert kernel["instructions"] == len(table[stages[-1]["after"]][1])


@pytest.mark.parametrize("name", ["softmax", "product"])
def test_assembly_is_linked_with_instructions_and_lines(pages: Pages, name: str) -> None:
    index, chunks = pages[name]
    for kernel in index["kernels"]:
        chunk = chunks[kernel["chunk"]]
        table, program, assembly = nodes(chunk), chunk["program"], chunk["assembly"]
        text, starts, lines = program["text"].split("\n"), program["starts"], assembly["text"].split("\n")
        listed = table[chunk["list"]["node"]][1]
        assert len(starts) == len(listed) + 1 and starts == sorted(starts)
        assert len(lines) == len(assembly["rows"])
        assert text[starts[0] - 1].startswith(("entry:", "  %number"))
        assert text[starts[-1]] == "  ret void"
        reached = set()
        for line, row in zip(lines, assembly["rows"], strict=True):
            if row < 0:
                continue
            assert text[row].startswith(("  ", "define ")), (line, text[row])
            inside = [i for i in range(len(listed)) if starts[i] <= row < starts[i + 1]]
            if inside:
                reached.add(table[listed[inside[0]]][2])
        # every line of the program that computes something on elements is reached from some instruction
        named = {tuple(kernel["at"])}
        assert named <= reached
        stores = [i for i, n in enumerate(listed) if table[n][0] == "STORE"]
        assert any(starts[i] <= row < starts[i + 1] for i in stores for row in assembly["rows"])


def test_lines_of_llvm_ir_belong_to_their_instructions(pages: Pages) -> None:
    index, chunks = pages["softmax"]
    chunk = chunks[index["kernels"][0]["chunk"]]
    table, text, starts = nodes(chunk), chunk["program"]["text"].split("\n"), chunk["program"]["starts"]
    for i, node in enumerate(table[chunk["list"]["node"]][1]):
        own = "\n".join(text[starts[i] : starts[i + 1]])
        if table[node][0] == "EXP" or table[node][0] == "FDIV":
            assert "fdiv" in own
        if table[node][0] == "RANGE":
            assert "phi" in own
        if table[node][0] in ("CONST", "VCONST"):
            assert own == ""


def test_the_emulator_shows_cuda_c(pages: Pages) -> None:
    index, chunks = pages["emulated"]
    chunk = chunks[index["kernels"][0]["chunk"]]
    assert chunk["program"]["language"] == "CUDA C"
    assert index["kernels"][0]["facts"]["threads of a block"] >= 1
    assert index["limits"]["EMULATOR"]["measured"] is False
    text, starts = chunk["program"]["text"].split("\n"), chunk["program"]["starts"]
    table = nodes(chunk)
    for i, node in enumerate(table[chunk["list"]["node"]][1]):
        own = "\n".join(text[starts[i] : starts[i + 1]])
        if table[node][0] == "BARRIER":
            assert "__syncthreads" in own
    assembly = chunk["assembly"]
    assert ".entry" in assembly["text"] or assembly["missing"]  # where NVIDIA's compiler is not installed


def test_registers_and_lines_of_cuda(pages: Pages) -> None:
    """What NVIDIA's compiler says of the very text; it needs no GPU."""
    from morok.device.cuda.compile import compile_cubin, compile_ptx
    from morok.errors import CompileError, DeviceError
    from morok.render.locations import read_locations
    from morok.viewer.assembly import cubin_registers

    index, chunks = pages["emulated"]
    text = chunks[index["kernels"][0]["chunk"]]["program"]["text"]
    try:
        code = compile_cubin(text, "sm_90a")
    except DeviceError as error:
        pytest.skip(error.message)
    registers = cubin_registers(code)
    assert registers is not None and 8 <= registers <= 255
    assert cubin_registers(b"no cubin") is None
    lines = text.split("\n")
    found = [(line, lines[row]) for line, row in read_locations(compile_ptx(text, "sm_90a")) if row >= 0]
    stored = [source for line, source in found if "st.global" in line]
    assert stored and all("g0" in source for source in stored)
    with pytest.raises(CompileError, match="NVRTC refuses"):
        compile_ptx("no program", "sm_90a")


def test_which_rule_has_removed_a_modulo(tmp_path: Path) -> None:
    """Of both kernels: what a rule did to an index is not forgotten because it did so before."""
    index, chunks = data_of(record(tmp_path, MODULO))
    ways = 0
    for kernel in index["kernels"]:
        chunk = chunks[kernel["chunk"]]
        table, strings = nodes(chunk), chunk["graphs"]["strings"]
        (stage,) = [s for s in chunk["stages"] if s["number"] == "2.1"]
        removed = {
            strings[rule]
            for step in stage["steps"]
            for rule, old, new in zip(*(step.get(name, ()) for name in ("rules", "old", "new")), strict=True)
            if "FLOORMOD" in _below(table, old) and "FLOORMOD" not in _below(table, new)
        }
        assert removed <= set(index["rules"])
        ways += bool(removed)
    assert ways == 3  # also where 64 rows of 96 are read as 32 of 192


def _below(table: list[Any], root: int) -> set[str]:
    found, stack = set(), [root]
    while stack:
        op, src, _ = table[stack.pop()]
        found.add(op)
        stack += src
    return found


def test_facts_of_a_processors_code() -> None:
    """A page of 4096 bytes and 64 more; what another function takes is not added."""
    from morok.viewer.assembly import host_facts

    arm = ["k.body:", "\tsub\tx9, sp, #1, lsl #12", "\tsub\tsp, sp, #64", "\tfadd\tv25.4s, v1.4s, v25.4s"]
    arm += [".LBB0_1:", "\tldp\tq1, q2, [x15]", "k:", "\tsub\tsp, sp, #480", "\tret"]
    assert host_facts(arm) == {"vector registers": 3, "general registers": 2, "stack bytes": 4160}
    intel = ["k:", "\tsubq\t$72, %rsp", "\tvaddps\t%zmm3, %zmm1, %zmm3", "\tmovq\t%rax, %r11"]
    assert host_facts(intel) == {"vector registers": 2, "general registers": 2, "stack bytes": 72}


def test_why_a_value_is_memory(pages: Pages) -> None:
    index, _ = pages["product"]
    plan = max(index["plans"], key=lambda p: p["runs"])
    assert plan["runs"] == 3  # although all three are the same nodes, and are recorded
    kernels = {k["number"]: k for k in index["kernels"]}
    assert all(k["kept"]["reasons"] for k in kernels.values() if k["kept"])


def test_a_buffer_between_two_kernels_has_a_reason_and_a_place(tmp_path: Path) -> None:
    with morok.view(tmp_path / "run.html"), knobs.override(DEVICE="CPU"):
        a = Tensor(np.ones((128, 128), np.float32))
        ((a @ a).relu() @ a).softmax(-1).realize()
    index, _ = data_of(tmp_path / "run.html")
    (plan,) = index["plans"]
    assert len(plan["steps"]) >= 2 and plan["placed"] and plan["arena"] >= 128 * 128 * 4
    readers = [step for step in plan["steps"] if step[3]]
    assert readers
    for offset, nbytes, first, last, writer in plan["placed"]:
        assert offset >= 0 and nbytes == 128 * 128 * 4 and first <= last and writer == first
    first = index["kernels"][plan["steps"][0][0]]
    assert first["kept"]["reasons"] and "output" not in first["kept"]["reasons"][0]


def test_accesses_are_examined_one_by_one(pages: Pages) -> None:
    pytest.importorskip("z3")
    index, chunks = pages["softmax"]
    kernel = index["kernels"][0]
    assert kernel["proof"]["status"] == "proved"
    chunk = chunks[kernel["chunk"]]
    listed = nodes(chunk)[chunk["list"]["node"]][1]
    table = nodes(chunk)
    shown = {i for i, kind, _ in chunk["proof"]["shown"] if kind == "bounds"}
    accesses = {i for i, n in enumerate(listed) if table[n][0] in ("LOAD", "STORE")}
    assert shown <= accesses and len(shown) > 0
    into_memory = {i for i in accesses if table[table[table[listed[i]][1][0]][1][0]][0] == "DEFINE_GLOBAL"}
    assert into_memory <= shown


def test_what_was_compiled_before_is_named_as_such(tmp_path: Path) -> None:
    with knobs.override(DEVICE="CPU"):
        x = Tensor(np.ones(100, np.float32)).realize()
        step = morok.jit(lambda t: t * 3 + 1)
        step(x)
        step(x)
        with morok.view(tmp_path / "run.html"):
            step(x)
    index, chunks = data_of(tmp_path / "run.html")
    assert len(index["rows"]) == 1
    assert index["kernels"][index["rows"][0]["kernel"]]["chunk"] == -1 or chunks


def test_a_mesh_and_what_its_devices_send(tmp_path: Path) -> None:
    from morok import P

    with knobs.override(DEVICE="CPU"), morok.view(tmp_path / "run.html"):
        mesh = morok.mesh(2, "data")
        x = Tensor(np.ones((8, 16), np.float32)).shard(mesh, P("data", None))
        assert (x * 2).sum().unshard().item() == 256.0
    index, _ = data_of(tmp_path / "run.html")
    sent = [row for row in index["rows"] if row["name"].startswith("allreduce")]
    assert len(sent) == 1 and sent[0]["calls"] == 1
    (plan,) = [p for p in index["plans"] if any(step[1].startswith("allreduce") for step in p["steps"])]
    names = [step[1] for step in plan["steps"]]
    at = names.index(sent[0]["name"])
    assert plan["steps"][at][3] and any(
        at in step[3] for step in plan["steps"][at + 1 :]
    )  # read, and read from


def test_nothing_at_all(tmp_path: Path) -> None:
    with morok.view(tmp_path / "deep" / "run.html"):
        pass
    index, chunks = data_of(tmp_path / "deep" / "run.html")
    assert index["kernels"] == index["rows"] == chunks == []


def test_nobody_listens_afterwards(tmp_path: Path) -> None:
    from morok.rewrite.observe import current
    from morok.runtime import profile

    with morok.view(tmp_path / "run.html"):
        assert current() is not None
    assert current() is None and profile.current() is None
