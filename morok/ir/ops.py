"""The op table: every operation a node may have, grouped, with one line of meaning each.

`docs/ops.md` is generated from this file. An `Op` is a plain interned object, so `node.op is Ops.ADD` is a
pointer comparison and an op hashes at C speed. To add an op, add one line to `Ops`; its arithmetic goes into
`ir/arithmetic/alu.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import final


class Group(Enum):
    """What kind of thing an op is; the value is the heading in the documentation."""

    DEFINITION = "Definition: where values come from"
    MOVEMENT = "Movement: the same values at other places"
    REDUCTION = "Reduction"
    CONTROL = "Control: loops, order, conditions"
    MEMORY = "Memory"
    MARK = "Marks: the first source, and something that is known of it"
    VECTOR = "Vector"
    EXPANSION = "Expansion: axes on their way to becoming vectors"
    UNARY = "ALU, one operand"
    BINARY = "ALU, two operands"
    TERNARY = "ALU, three operands"
    HARDWARE = "Hardware: matrix units, lanes, asynchronous copies"
    STRUCTURE = "Kernel structure"


VARIADIC = -1


@final
class Op:
    """One row of the table. Compared by identity; `arity` is the number of sources or VARIADIC."""

    __slots__ = (
        "arity",
        "commutative",
        "group",
        "is_alu",
        "is_compare",
        "is_movement",
        "meaning",
        "name",
        "number",
    )

    def __init__(
        self, number: int, name: str, group: Group, arity: int, meaning: str, commutative: bool
    ) -> None:
        self.number = number
        self.name = name
        self.group = group
        self.arity = arity
        self.meaning = meaning
        self.commutative = commutative
        self.is_alu = group in (Group.UNARY, Group.BINARY, Group.TERNARY)
        self.is_movement = group is Group.MOVEMENT
        self.is_compare = name in ("CMPLT", "CMPNE", "CMPEQ")

    def __repr__(self) -> str:
        return f"Ops.{self.name}"

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return op_by_name, (self.name,)

    def __lt__(self, other: Op) -> bool:
        return self.number < other.number


_TABLE: dict[str, Op] = {}


class _Row:
    """A line of `Ops` before its attribute name is known."""

    __slots__ = ("args",)

    def __init__(self, group: Group, arity: int, meaning: str, commutative: bool = False) -> None:
        self.args = (group, arity, meaning, commutative)

    def __set_name__(self, owner: type, name: str) -> None:
        group, arity, meaning, commutative = self.args
        op = Op(len(_TABLE), name, group, arity, meaning, commutative)
        _TABLE[name] = op
        setattr(owner, name, op)


def _row(group: Group, arity: int, meaning: str, commutative: bool = False) -> Op:
    # The descriptor replaces itself by the Op as soon as the class body is done; typed as what it becomes.
    return _Row(group, arity, meaning, commutative)  # type: ignore[return-value]


_D, _M, _R, _C = Group.DEFINITION, Group.MOVEMENT, Group.REDUCTION, Group.CONTROL
_MEM, _V, _X, _U = Group.MEMORY, Group.VECTOR, Group.EXPANSION, Group.UNARY
_B, _T, _H, _S = Group.BINARY, Group.TERNARY, Group.HARDWARE, Group.STRUCTURE
_A, _N = Group.MARK, VARIADIC


class Ops:
    """All ops. Sources are written as a call; `arg` is the node's argument."""

    # definition
    CONST = _row(_D, 0, "the value `arg`; with a vector dtype the same value in every lane")
    VCONST = _row(_D, 0, "a vector constant, `arg` holds one value per lane")
    DEFINE_VAR = _row(_D, 0, "an integer variable `arg = (name, lo, hi)`, bounds included")
    BIND = _row(_D, 2, "BIND(variable, value): the variable with the value it has in this run")
    DEFINE_GLOBAL = _row(_D, 0, "pointer to the kernel's buffer number `arg`")
    DEFINE_LOCAL = _row(_D, 0, "pointer to a buffer shared by a block or a loop level, `arg` names it")
    DEFINE_REG = _row(_D, 0, "pointer to registers private to one thread, `arg` names them")
    SPECIAL = _row(_D, _N, "SPECIAL(end[, role]): a hardware index (`arg`: gidx0, lidx1, …) in 0 … end-1")
    BUFFER = _row(_D, _N, "memory for a tensor: BUFFER(unique, device), `arg` is the number of elements")
    UNIQUE = _row(_D, 0, "a number that makes one buffer differ from another")
    DEVICE = _row(_D, 0, "a device's name")
    PARAM = _row(_D, 0, "placeholder for a buffer in a normalised graph, `arg = (number, size, device)`")
    IOTA = _row(_D, _N, "IOTA(*sizes): at each place its position along axis `arg`")

    # movement
    RESHAPE = _row(_M, _N, "RESHAPE(x, *sizes): the same elements in row-major order under another shape")
    PERMUTE = _row(_M, 1, "axes in the order `arg`")
    EXPAND = _row(_M, _N, "EXPAND(x, *sizes): axes of size 1 repeated")
    PAD = _row(_M, _N, "PAD(x, *(before, after)): zeros around each axis")
    SHRINK = _row(_M, _N, "SHRINK(x, *(start, stop)): a box out of x")
    FLIP = _row(_M, 1, "axes with a true entry in `arg` reversed")

    # reduction
    REDUCE_AXIS = _row(_R, 1, "reduce over axes, `arg = (op, axes)`; reduced axes keep size 1")
    REDUCE = _row(_R, _N, "REDUCE(*values, *ranges): `arg` holds one op per value; they reduce together")
    SCAN_AXIS = _row(_R, _N, "along axis `arg[1]` at each place everything up to it, combined by `arg[0]`")
    SCAN = _row(_R, _N, "SCAN(*values[, start], *ranges): the steps up to this one, combined as `arg` says")
    ONLINE = _row(
        _R, 2, "ONLINE(x, m): x, an accumulator that is rescaled when the maximum m rises (online softmax)"
    )
    PICK = _row(_R, 1, "component `arg` of a node with several values")
    ALLREDUCE = _row(
        _R, _N, "ALLREDUCE(x, *ranges): reduced with op `arg` over DEVICE ranges, for each of them"
    )
    REDUCE_SCATTER = _row(
        _R, _N, "REDUCE_SCATTER(x, *ranges): as ALLREDUCE, of which each device gets its row of axis 0"
    )

    # control
    RANGE = _row(_C, 1, "RANGE(end): a loop index 0 … end-1, `arg = (number, kind)`")
    END = _row(_C, _N, "END(body, *ranges): closes loops after the body")
    IF = _row(_C, _N, "IF(condition, …): what follows runs only where it holds")
    ENDIF = _row(_C, 1, "closes an IF")
    BARRIER = _row(
        _C, _N, "all threads of the block, or of `arg` blocks, wait for one another after the sources"
    )
    SINK = _row(_C, _N, "the root: everything that has to happen")
    AFTER = _row(_C, _N, "AFTER(x, *done): x, once the others have happened")
    GROUP = _row(_C, _N, "several effects as one")

    # memory
    INDEX = _row(_MEM, _N, "INDEX(pointer, *indices[, gate]): an element; a boolean last source guards it")
    LOAD = _row(_MEM, _N, "LOAD(index[, otherwise]): reads memory; `otherwise` where the gate is false")
    STORE = _row(
        _MEM,
        _N,
        "STORE(index, value): writes memory where the gate is true; PACKED: these lanes side by side",
    )
    ASSIGN = _row(_MEM, _N, "ASSIGN(target, value): the target, a view of a PLACE, overwritten")
    PLACE = _row(_MEM, 1, "PLACE(state): where the memory of a state lies, to be written and never read")
    SCATTER = _row(
        _MEM, 3, "SCATTER(x, places, rows): x with rows put in in order, or joined by op `arg`, or each ALONE"
    )
    WRITTEN = _row(_MEM, _N, "WRITTEN(*memory): what the kernel `arg = (name, key, shape)` makes of it")
    BUFFERIZE = _row(_MEM, _N, "BUFFERIZE(value, *ranges): the value stored for every point of the ranges")
    COPY = _row(_MEM, 2, "COPY(x, device): x on another device, or in another placement on a mesh")
    ALLGATHER = _row(
        _MEM, _N, "ALLGATHER(x, *ranges): the x of all devices of DEVICE ranges, along a new axis 0"
    )
    ALL_TO_ALL = _row(
        _MEM, _N, "ALL_TO_ALL(x, *ranges): row i of axis 0 goes to device i, as the row of whom it is from"
    )
    SEND_RECEIVE = _row(
        _MEM,
        _N,
        "SEND_RECEIVE(x, *ranges): the x of the device `arg` places before; zeros where there is none",
    )
    BROADCAST = _row(_MEM, _N, "BROADCAST(x, *ranges): the x of device `arg`, for all of them")
    CONTIGUOUS = _row(_MEM, 1, "x, stored in row-major order")

    # marks
    CALL = _row(_A, _N, "CALL(result, *inputs): a result as a function, `arg = (name, *attributes)`")
    DETACH = _row(_A, 1, "x, through which no gradient flows")
    IDENTITY = _row(_A, 1, "x as one value: equal ones with another number `arg` are other nodes")
    RECOMPUTE = _row(_A, 2, "RECOMPUTE(x, y): x for a second computation, which begins when y is there")

    # vector
    VECTORIZE = _row(_V, _N, "a vector of scalars")
    GEP = _row(_V, 1, "lanes `arg` of a vector")
    CAT = _row(_V, _N, "vectors one after the other")
    PTRCAT = _row(_V, _N, "pointers one after the other, to be loaded as one vector")
    VREDUCE = _row(_V, 1, "all lanes of a vector combined with op `arg`, in a tree")

    # expansion
    UNROLL = _row(_X, 1, "lanes that stand for the points of axes, `arg` = ((axis, size), …)")
    CONTRACT = _row(_X, 1, "the points of axes `arg` = ((axis, size), …) gathered into lanes")

    # unary
    CAST = _row(_U, 1, "conversion by value; float to integer truncates and saturates, NaN gives 0")
    BITCAST = _row(_U, 1, "the same bits as another type")
    NEG = _row(_U, 1, "-x; integers wrap")
    NOT = _row(_U, 1, "logical not of booleans, bitwise not of integers")
    ABS = _row(_U, 1, "|x|; integers wrap")
    RECIP = _row(_U, 1, "1 / x, correctly rounded")
    SQRT = _row(_U, 1, "square root, correctly rounded; NaN below zero")
    RSQRT = _row(_U, 1, "1 / sqrt(x)")
    EXP = _row(_U, 1, "e to the power x")
    EXP2 = _row(_U, 1, "2 to the power x")
    LOG = _row(_U, 1, "natural logarithm; NaN below zero")
    LOG2 = _row(_U, 1, "logarithm to base 2")
    SIN = _row(_U, 1, "sine of radians")
    COS = _row(_U, 1, "cosine of radians")
    TAN = _row(_U, 1, "tangent of radians")
    TANH = _row(_U, 1, "hyperbolic tangent")
    ERF = _row(_U, 1, "error function")
    TRUNC = _row(_U, 1, "toward zero to a whole number")
    FLOOR = _row(_U, 1, "down to a whole number")
    CEIL = _row(_U, 1, "up to a whole number")
    RINT = _row(_U, 1, "to the nearest whole number, halves to even")
    POPCOUNT = _row(_U, 1, "number of set bits")

    # binary
    ADD = _row(_B, 2, "x + y; integers wrap", commutative=True)
    SUB = _row(_B, 2, "x - y; integers wrap")
    MUL = _row(_B, 2, "x * y; integers wrap", commutative=True)
    FDIV = _row(_B, 2, "x / y of floats, correctly rounded")
    FLOORDIV = _row(_B, 2, "x // y of integers, rounded down; 0 where y is 0")
    FLOORMOD = _row(_B, 2, "x - (x // y) * y; 0 where y is 0")
    CDIV = _row(_B, 2, "quotient of integers rounded toward zero, as processors do; 0 where y is 0")
    CMOD = _row(_B, 2, "x - CDIV(x, y) * y; 0 where y is 0")
    FMOD = _row(
        _B, 2, "x - y·q of floats for the whole q toward zero of x / y, exact; NaN where there is none"
    )
    MULHI = _row(_B, 2, "upper half of the product of two integers", commutative=True)
    DOT4 = _row(_B, 2, "sum of the products of the four signed bytes of two integers", commutative=True)
    DOT2 = _row(
        _B, 2, "sum of the products of the two float16 that are the bits of two float32", commutative=True
    )
    POW = _row(_B, 2, "x to the power y, as C's pow; integers wrap; 0 for a negative y unless |x| is 1")
    MAX = _row(_B, 2, "the larger; NaN if either is NaN", commutative=True)
    MIN = _row(_B, 2, "the smaller; NaN if either is NaN", commutative=True)
    CMPLT = _row(_B, 2, "x < y; false with NaN")
    CMPNE = _row(_B, 2, "x ≠ y; true with NaN", commutative=True)
    CMPEQ = _row(_B, 2, "x = y; false with NaN", commutative=True)
    AND = _row(_B, 2, "logical or bitwise and", commutative=True)
    OR = _row(_B, 2, "logical or bitwise or", commutative=True)
    XOR = _row(_B, 2, "logical or bitwise exclusive or", commutative=True)
    SHL = _row(_B, 2, "x · 2^y, wraps; 0 where y is not in 0 … bits-1")
    SHR = _row(_B, 2, "x // 2^y; where y is not in 0 … bits-1: 0, or -1 for a negative x")
    ATAN2 = _row(_B, 2, "angle of the point (y, x), source order (y, x)")
    THREEFRY = _row(_B, 2, "counter-based random bits of a 64-bit counter under a 64-bit key")

    # ternary
    WHERE = _row(_T, 3, "WHERE(c, x, y): x where c holds, else y")
    MULACC = _row(_T, 3, "x * y + z with one rounding")
    CHECK = _row(
        _T, 3, "CHECK(x, n, y): x where 0 ≤ x < n, else y; what is outside is noted, `arg` says where"
    )

    # hardware
    WMMA = _row(
        _H, _N, "WMMA(a, b, c): a matrix unit's a·b + c on fragments, `arg` the unit; with ranges: one point"
    )
    SHUFFLE = _row(_H, 2, "SHUFFLE(x, lane): x of another lane of the warp")
    ASYNC_COPY = _row(
        _H,
        _N,
        "ASYNC_COPY(target, source): starts a copy that completes later; "
        "(target, tensor map, mbarrier, *coordinates): of a box by TMA, which arrives at the barrier",
    )
    ASYNC_WAIT = _row(_H, _N, "waits until at most `arg` groups of copies are under way")
    ASYNC_COMMIT = _row(_H, _N, "closes a group of asynchronous copies")
    FENCE = _row(_H, _N, "what the thread has done is seen by units that read memory by themselves")
    MBARRIER = _row(_H, _N, "MBARRIER(place[, parity]): an mbarrier between roles, `arg` says what is done")
    DEFINE_TENSOR_MAP = _row(_H, 1, "DEFINE_TENSOR_MAP(pointer): a buffer as TMA sees it, by the box `arg`")
    LDMATRIX = _row(_H, _N, "loads matrix fragments from local memory, `arg` describes their layout")
    TILE_PRODUCT = _row(
        _H, 3, "TILE_PRODUCT(c, a, b): c ← a·b for matrices in memory, `arg` says of which sizes and by whom"
    )
    PREFETCH = _row(_H, 1, "asks for a cache line")

    # kernel structure
    KERNEL = _row(_S, 1, "KERNEL(write): the kernel number `arg[1]` of a schedule, which readers wait for")
    LINEAR = _row(_S, _N, "the list of instructions")


PACKED = ("packed",)  # the `arg` of a STORE of the lanes that a gate lets through, one after the other

ALL_OPS: tuple[Op, ...] = tuple(_TABLE.values())
ALU: frozenset[Op] = frozenset(op for op in ALL_OPS if op.is_alu)
UNARY: frozenset[Op] = frozenset(op for op in ALL_OPS if op.group is Group.UNARY)
BINARY: frozenset[Op] = frozenset(op for op in ALL_OPS if op.group is Group.BINARY)
TERNARY: frozenset[Op] = frozenset(op for op in ALL_OPS if op.group is Group.TERNARY)
COMMUTATIVE: frozenset[Op] = frozenset(op for op in ALL_OPS if op.commutative)
COMPARE: frozenset[Op] = frozenset(op for op in ALL_OPS if op.is_compare)
MOVEMENT: frozenset[Op] = frozenset(op for op in ALL_OPS if op.is_movement)
# Steps between the devices of a mesh, and all that moves memory without computing in a kernel.
COLLECTIVES: frozenset[Op] = frozenset((
    Ops.ALLREDUCE, Ops.REDUCE_SCATTER, Ops.ALLGATHER, Ops.ALL_TO_ALL, Ops.SEND_RECEIVE, Ops.BROADCAST,
))  # fmt: skip
TRANSFERS: frozenset[Op] = COLLECTIVES | {Ops.COPY}


@final
class AxisKind(Enum):
    """What becomes of a RANGE."""

    GLOBAL = "global"  # a grid dimension of a GPU, or the outer parallel loop of a CPU
    THREAD = "thread"  # split over CPU threads
    LOCAL = "local"  # threads of a block
    WARP = "warp"  # lanes of a warp
    GROUP_REDUCE = "group_reduce"  # a reduction shared by the threads of a block
    LOOP = "loop"  # an ordinary loop over outputs
    ORDERED = "ordered"  # a loop over outputs whose steps must follow each other: they may meet in one place
    REDUCE = "reduce"  # a loop that a reduction closes
    UPCAST = "upcast"  # lanes of a vector over outputs
    UNROLL = "unroll"  # lanes of a vector over a reduction
    DEVICE = "device"  # a loop around kernels whose steps run on the devices of a mesh, each its own
    ROLE = "role"  # one pass, made by some of the threads of a block while others are in their own
    CLUSTER = "cluster"  # blocks that run at the same time and can write into each other's shared memory

    __hash__ = object.__hash__  # members are singletons; Enum's own hash runs Python code

    def __repr__(self) -> str:
        return f"AxisKind.{self.name}"

    def __lt__(self, other: AxisKind) -> bool:
        return _KIND_ORDER[self] < _KIND_ORDER[other]


_KIND_ORDER = {kind: number for number, kind in enumerate(AxisKind)}


def op_by_name(name: str) -> Op:
    """The op called `name`; KeyError if there is none."""
    return _TABLE[name]


def ops_by_group() -> Iterator[tuple[Group, list[Op]]]:
    """The table in the order of the documentation."""
    for group in Group:
        yield group, [op for op in ALL_OPS if op.group is group]
