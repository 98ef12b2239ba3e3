"""Warp roles in CUDA C: branches with registers of their own, mbarriers, TMA copies.

A role is one branch of a chain of if and else: the compiler then gives each its own number of registers. A
box is described by a tensor map, 128 bytes that the host has made, which the kernel takes as an argument.
"""

from __future__ import annotations

from collections.abc import Callable

from morok.errors import CompileError
from morok.ir.node import UOp
from morok.ir.ops import Op, Ops
from morok.ir.provenance import place
from morok.ir.warp_roles import Box, MBarrierStep, Role, at_first
from morok.render.cuda.writer import Writer

TENSOR_MAP = "struct __align__(64) TensorMap { unsigned long long words[16]; };"
WAIT = (
    "__device__ __forceinline__ void wait_phase(unsigned barrier, unsigned parity) {\n"
    '  asm volatile("{ .reg .pred p; again_%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; '
    '@p bra done_%=; bra again_%=; done_%=: }" : : "r"(barrier), "r"(parity) : "memory");\n'
    "}"
)


# all threads of all blocks of a cluster have come
ALL_BLOCKS = 'asm volatile("barrier.cluster.arrive; barrier.cluster.wait;" : : : "memory");'


def address(writer: Writer, node: UOp) -> str:
    """The place of an INDEX into shared memory, as instructions want it."""
    memory, where = writer.addresses[node]
    return f"(unsigned)__cvta_generic_to_shared({memory} + {where})"


def open_role(writer: Writer, node: UOp) -> None:
    """The branch of a role."""
    role: Role = node.arg[2]
    last = role.first + role.threads
    before = "else " if writer.roles else ""
    after = f"threadIdx.x >= {role.first} && " if role.first else ""
    writer.put(f"{before}if ({after}threadIdx.x < {last}) {{  // {role.name}")
    writer.depth += 1
    writer.roles.append(role)
    writer.role = role
    if role.registers:
        # a block begins with the same number for all, and some give theirs to others
        given = at_first(sum(r.threads for r in _all_roles(writer)))
        if role.registers != given:
            how = "inc" if role.registers > given else "dec"
            writer.put(f'asm volatile("setmaxnreg.{how}.sync.aligned.u32 {role.registers};");')
    if role.single:
        writer.put(f"if (threadIdx.x == {role.first}) {{")
        writer.depth += 1
    writer.values[node] = ["0"]


def _all_roles(writer: Writer) -> list[Role]:
    return [n.arg[2] for n in writer.instructions if n.op is Ops.RANGE and len(n.arg) > 2]


def close_role(writer: Writer) -> None:
    """The end of the branch."""
    assert writer.role is not None
    for _ in range(2 if writer.role.single else 1):
        writer.depth -= 1
        writer.put("}")
    writer.role = None


def barrier(writer: Writer, node: UOp) -> None:
    """BARRIER: of the block, of the threads of a role, or of the blocks of a cluster."""
    if node.arg is not None:
        writer.cluster = int(node.arg)
        writer.put('asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");')
        writer.put(ALL_BLOCKS)
        return
    if writer.role is None:
        writer.put("__syncthreads();")
        return
    number = len(writer.roles)
    writer.put(f'asm volatile("bar.sync {number}, {writer.role.threads};" : : : "memory");')


def write_mbarrier(writer: Writer, node: UOp) -> None:
    """MBARRIER."""
    phase: MBarrierStep = node.arg
    where = node.src[0]
    at = address(writer, where)
    gate = f"if ({writer.scalar(where.src[2])}) " if len(where.src) > 2 else ""
    if phase.what == "wait":
        writer.helper(WAIT)
        writer.put(f"{gate}wait_phase({at}, {writer.scalar(node.src[1])});")
        return
    texts = {
        "init": f"mbarrier.init.shared::cta.b64 [%0], {phase.amount};",
        "arrive": "mbarrier.arrive.shared::cta.b64 _, [%0];",
        "expect": f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], {phase.amount};",
    }
    if phase.blocks > 1:
        texts["arrive"] = "".join(
            f"mapa.shared::cluster.u32 r, %0, {rank}; mbarrier.arrive.shared::cluster.b64 _, [r]; "
            for rank in range(phase.blocks)
        )
        texts["arrive"] = f"{{ .reg .b32 r; {texts['arrive']}}}"
    if phase.what not in texts:
        raise CompileError(f"CUDA C cannot do {phase.what} to a barrier", place=place(node))
    writer.put(f'{gate}asm volatile("{texts[phase.what]}" : : "r"({at}) : "memory");')


def write_box(writer: Writer, node: UOp) -> None:
    """ASYNC_COPY of a box into shared memory, whose bytes arrive at a barrier."""
    target, source, where, *coordinates = node.src
    box: Box = source.arg
    count = len(box.sizes)
    names = [f"%{3 + i}" for i in range(len(coordinates))]
    offsets = f", {{{', '.join(names[count:])}}}" if box.walk is not None else ""
    given = [
        f'"r"({address(writer, target)})',
        f'"l"(&{writer.scalar(source)})',
        f'"r"({address(writer, where)})',
        *(f'"r"({writer.scalar(c)})' for c in coordinates[:count]),
        *(f'"h"((short){writer.scalar(c)})' for c in coordinates[count:]),
    ]
    mode = "tile" if box.walk is None else "im2col"
    to, blocks = "", ""
    if box.blocks > 1:
        to, blocks = ".multicast::cluster", f", %{3 + len(coordinates)}"
        given.append(f'"h"((short){(1 << box.blocks) - 1})')
    writer.put(
        f'asm volatile("cp.async.bulk.tensor.{count}d.shared::cluster.global.{mode}.mbarrier::complete_tx'
        f'::bytes{to} [%0], [%1, {{{", ".join(names[:count])}}}], [%2]{offsets}{blocks};" : : '
        f'{", ".join(given)} : "memory");'
    )


def write_tensor_map(writer: Writer, node: UOp) -> None:
    """DEFINE_TENSOR_MAP: one more argument of the kernel."""
    writer.helper(TENSOR_MAP)
    writer.values[node] = [f"m{len(writer.tensor_maps)}"]
    writer.tensor_maps.append((int(node.src[0].arg), node.dtype.base.name, node.arg))


WARP_ROLE_OPS: dict[Op, Callable[[Writer, UOp], None]] = {
    Ops.MBARRIER: write_mbarrier,
    Ops.DEFINE_TENSOR_MAP: write_tensor_map,
}
