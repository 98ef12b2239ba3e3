"""What NVIDIA's compiler is told about loops and registers, where it would choose worse by itself.

A thread that multiplies a tile in registers reads three of them for each product, from two banks that give
one each per clock. Two come at once if they lie in different banks, and the third one is still at hand from
the product before. The compiler arranges that, unless something else says where a register must be. A vector
in memory does: its elements are neighbours, also those of the sums that are stored in the end. Their banks
then are those of the columns that they are multiplied with, and every second product takes two clocks. So
sums that are stored in vectors are copied first, by an instruction that the compiler cannot leave out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from morok.dtype import AddrSpace, PtrDType, bfloat16, float16, float32
from morok.ir.build import RARE
from morok.ir.node import UOp
from morok.ir.ops import Ops

AT_ONCE = 16  # parts of a sum that are read from shared memory before they are added up
FEW = 64  # instructions of a loop that is written out so many times
MANY_SUMS = 64  # registers of a thread's tile from which on their banks matter
TURNS = 2  # of a product's loop, so that one's factors are read while those of the other are multiplied
PRODUCTS = range(
    128, 513
)  # of a loop: fewer are read while other warps multiply, and more are not kept at hand


def written_out(instructions: Sequence[UOp]) -> dict[UOp, int]:
    """Loops of which so many turns are written out."""
    return dict.fromkeys(_joining_loops(instructions), AT_ONCE) | dict.fromkeys(
        _product_loops(instructions), TURNS
    )


def are_sums(value: UOp) -> bool:
    """Whether all lanes of a vector are registers of a tile, as they are after its loop."""
    if value.op in (Ops.VECTORIZE, Ops.CAT, Ops.GEP):
        return all(map(are_sums, value.src))
    if value.op is not Ops.LOAD or value.dtype.scalar is not float32:
        return False
    base = base_of(value.src[0])
    assert isinstance(base.dtype, PtrDType)
    return base.op is Ops.DEFINE_REG and base.dtype.size >= MANY_SUMS and not str(base.arg).startswith(RARE)


def in_pairs(instructions: Sequence[UOp]) -> set[UOp]:
    """Arrays of halves in registers that are words: all places are known, and whoever writes one of a pair
    writes the other.

    Units take words. Halves that are kept from one step to the next would be put together in each.
    """
    found = {
        n for n in instructions if n.op is Ops.DEFINE_REG and _is_half(n) and not str(n.arg).startswith(RARE)
    }
    written: dict[UOp, set[int]] = {n: set() for n in found}
    for node in instructions:
        if node.op not in (Ops.LOAD, Ops.STORE) or (base := base_of(node.src[0])) not in found:
            continue
        address = node.src[0]
        if len(address.src) != 2 or address.src[1].op is not Ops.CONST:
            found.discard(base)
        elif node.op is Ops.STORE:
            first = int(address.src[1].arg)
            written[base] ^= set(range(first, first + node.src[1].dtype.lanes))
            if not any(n ^ 1 not in written[base] for n in written[base]):
                written[base].clear()
        elif written[base]:  # half of a pair is a new one
            found.discard(base)
    return {n for n in found if not written[n]}


def _is_half(memory: UOp) -> bool:
    assert isinstance(memory.dtype, PtrDType)
    return memory.dtype.elem in (float16, bfloat16) and memory.dtype.size % 2 == 0


class Pairs:
    """What is known of one array of words while it is written and read."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.first: dict[int, str] = {}  # one of a pair, until the other one comes
        self.read: dict[int, str] = {}  # words as they have been read, until others are written

    def lane(self, put: Callable[[str], None], fresh: Callable[[], str], place: int) -> str:
        """The text of one half. What it is now, whatever is written later."""
        number = place // 2
        if number not in self.read:
            self.read[number] = f"w{fresh()[1:]}"
            put(f"unsigned {self.read[number]} = {self.name}[{number}];")
        return f"(unsigned short)({self.read[number]} >> {place % 2 * 16})"

    def write(self, put: Callable[[str], None], word: Callable[[list[str]], str], place: int, x: str) -> None:
        """One half is this from now on; the word is written when both are known."""
        other = self.first.pop(place ^ 1, None)
        if other is None:
            self.first[place] = x
            return
        pair = [x, other] if place % 2 == 0 else [other, x]
        self.read.pop(place // 2, None)
        put(f"{self.name}[{place // 2}] = {word(pair)};")


def base_of(address: UOp) -> UOp:
    """The memory that an address is in."""
    node = address
    while node.src:
        node = node.src[0]
    return node


def space_of(address: UOp) -> AddrSpace:
    dtype = address.dtype
    assert isinstance(dtype, PtrDType)
    return dtype.space


def _product_loops(instructions: Sequence[UOp]) -> set[UOp]:
    """Loops over steps of products in registers whose factors lie in shared memory.

    One turn begins with reads that the first products wait for. With two in a row the second one's are under
    way while the first one's are multiplied: 4096³ in float32 43 TFLOP/s with one, 46 with two.
    """
    found: set[UOp] = set()
    loop: UOp | None = None
    products = 0
    for node in instructions:
        if node.op is Ops.RANGE:
            loop, products = node, 0
        elif loop is None:
            continue
        elif node.op is Ops.MULACC and node.dtype.scalar is float32:
            products += node.dtype.lanes
        elif node.op is Ops.END:
            end = loop.src[0]
            even = end.op is Ops.CONST and end.arg % TURNS == 0
            if node.src[1] is loop and even and products in PRODUCTS:
                found.add(loop)
            loop = None
        elif node.op in (Ops.BARRIER, Ops.WMMA, Ops.IF) or (
            node.op in (Ops.LOAD, Ops.STORE) and space_of(node.src[0]) is AddrSpace.GLOBAL
        ):
            loop = None
    return found


def _joining_loops(instructions: Sequence[UOp]) -> set[UOp]:
    """Loops that add up what many threads have left in shared memory. Written out, as the compiler would do,
    all of it would be read first, into registers that the kernel needs for other things. Loops with steps of
    a product, on matrix units or in registers, are no such ones: there is more in them, and all that is to be
    written out has been."""
    found: set[UOp] = set()
    loop: UOp | None = None
    spaces: set[AddrSpace] = set()
    began = 0
    for at, node in enumerate(instructions):
        if node.op is Ops.RANGE:
            loop, spaces, began = node, set(), at
        elif node.op in (Ops.WMMA, Ops.BARRIER):
            loop = None
        elif node.op is Ops.LOAD and space_of(node.src[0]) is not AddrSpace.REG:
            spaces.add(space_of(node.src[0]))
        elif node.op is Ops.END:
            other = loop is None or loop is not node.src[1] or at - began > FEW
            end = None if other or loop is None else loop.src[0]
            if end is not None and end.op is Ops.CONST and end.arg > AT_ONCE and spaces == {AddrSpace.LOCAL}:
                found.add(node.src[1])
            loop = None
    return found
