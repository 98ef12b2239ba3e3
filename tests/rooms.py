"""The checker of the house's plan: reads a package's source and lists what breaks the order of its rooms."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Each room may import the rooms of the lines above it; rooms of one line do not know each other.
ORDER: tuple[tuple[str, ...], ...] = (
    ("errors", "forks", "caches"),
    ("knobs",),
    ("dtype",),
    ("ir",),
    ("machine",),
    ("rewrite",),
    ("symbolic",),
    ("proof", "schedule"),
    ("optimize",),
    ("codegen",),
    ("render",),
    ("device",),
    ("runtime",),
    ("tensor",),
    ("functions",),
    ("nn", "onnx", "torch", "viewer"),
    ("llm",),
    ("cli",),
    ("__main__",),
)
LEVEL = {room: level for level, rooms in enumerate(ORDER) for room in rooms}

# Who may import the prover, which needs an optional dependency: the command line, and hooks listed here.
PROOF_GUESTS = frozenset(("proof", "cli"))
PROOF_HOOKS: frozenset[str] = frozenset(("morok.device.prove", "morok.viewer.verdicts"))

# The package's own __init__ loads its public names lazily, and may hold what that takes.
ROOT_NAMES = frozenset(("__version__", "_EXPORTS", "_SPACES", "__getattr__", "__dir__"))

ENVIRONMENT = frozenset(("environ", "environb", "getenv", "getenvb", "putenv"))
MAX_LINES = 500
MAX_NAMES = 25  # of files and folders that one sees in a folder
MAX_BODY = 80  # lines of a function

# Functions that are longer, and why: the only place where that is decided.
LONG_FUNCTIONS = {
    "morok.symbolic.divmod.divmod_rules": "a list of rules, one equation after the other",
    "morok.rewrite.engine._fixpoint": "the loop that most of the compiler's time is spent in: a call costs",
    "benchmarks.cliffs.rows": "a table",
}


@dataclass(frozen=True)
class Import:
    """One module of the package naming another."""

    source: str
    target: str
    line: int
    only_types: bool  # under `if TYPE_CHECKING`: it costs nothing when the program runs


@dataclass(frozen=True)
class Module:
    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def room(self) -> str:
        """The part of the name below the package: `dtype` of morok.dtype.types; empty for morok itself."""
        return self.name.partition(".")[2].partition(".")[0]


def read(package: Path) -> dict[str, Module]:
    """Every module under the package's folder, by dotted name."""
    modules = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text(encoding="utf-8")
        modules[name] = Module(name, path, text, ast.parse(text, str(path)))
    return modules


def check(package: Path) -> list[str]:
    """Everything that breaks the plan, one sentence each."""
    modules = read(package)
    imports = [found for module in modules.values() for found in imports_of(module, modules)]
    return [
        *_unknown_rooms(modules),
        *_upward_imports(imports, modules),
        *_cycles(imports),
        *_folder_cycles(imports),
        *_code_in_inits(modules),
        *_environment_reads(modules),
        *_long_files(modules),
        *_long_functions(modules),
        *_crowded(modules),
    ]


def check_sizes(folder: Path) -> list[str]:
    """The same for what is no part of the package, as far as sizes are concerned."""
    modules = read(folder)
    return [*_long_files(modules), *_long_functions(modules)]


def imports_of(module: Module, modules: dict[str, Module]) -> Iterator[Import]:
    """All imports inside the package, those within functions included."""
    root = module.name.partition(".")[0]
    type_only = {id(node) for block in _type_blocks(module.tree) for node in ast.walk(block)}
    for node in ast.walk(module.tree):
        for target in _targets(node, module, modules):
            if target.partition(".")[0] == root:
                yield Import(module.name, target, node.lineno, id(node) in type_only)


def _type_blocks(tree: ast.Module) -> Iterator[ast.stmt]:
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            yield from node.body


def _targets(node: ast.AST, module: Module, modules: dict[str, Module]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            here = module.name.split(".") if module.is_package else module.name.split(".")[:-1]
            base = ".".join([*here[: len(here) - node.level + 1], *([base] if base else [])])
        for alias in node.names:
            inner = f"{base}.{alias.name}"
            yield inner if inner in modules else base


def _unknown_rooms(modules: dict[str, Module]) -> Iterator[str]:
    for module in modules.values():
        if module.room and module.room not in LEVEL:
            yield f"{module.name}: {module.room} is not a room of the plan"


def _upward_imports(imports: list[Import], modules: dict[str, Module]) -> Iterator[str]:
    for found in imports:
        source, target = _room(found.source), _room(found.target)
        if found.target not in modules:
            yield f"{found.source}:{found.line} imports {found.target}, which does not exist"
            continue
        if target == "" or source == target:
            continue  # the package's own name (its version), or a neighbour in the same room
        if source == "" and found.only_types:
            continue  # what editors see costs nothing when the program runs
        if source == "":
            yield f"{found.source}:{found.line} imports {found.target}: the package itself loads lazily"
            continue
        if target == "proof" and source not in PROOF_GUESTS and found.source not in PROOF_HOOKS:
            yield f"{found.source}:{found.line} imports {found.target}: the prover is for the command line"
            continue
        if LEVEL.get(source, -1) <= LEVEL.get(target, -1):
            yield f"{found.source}:{found.line} imports {found.target}: {target} is not above {source}"


def _room(name: str) -> str:
    return name.partition(".")[2].partition(".")[0]


def _cycles(imports: list[Import]) -> Iterator[str]:
    """Modules that need each other, be it only for types. The package itself shows types of all rooms."""
    graph: dict[str, list[str]] = {}
    for found in imports:
        if _room(found.source):
            graph.setdefault(found.source, []).append(found.target)
    yield from ("cycle: " + " → ".join(path) for path in _circles(graph))


def _folder_cycles(imports: list[Import]) -> Iterator[str]:
    """Folders, and files beside them, that need each other: inside of a room imports go one way, too."""
    graph: dict[str, list[str]] = {}
    for found in imports:
        source, target = _apart(found.source, found.target)
        if source.count(".") > 1 and target.count(".") > 1 and source != target:
            graph.setdefault(source, []).append(target)
    yield from ("cycle of folders: " + " → ".join(path) for path in _circles(graph))


def _apart(source: str, target: str) -> tuple[str, str]:
    """The two where their names part: morok.ir.a.x and morok.ir.b.y are morok.ir.a and morok.ir.b."""
    one, other = source.split("."), target.split(".")
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    return ".".join(one[: same + 1]), ".".join(other[: same + 1])


def _circles(graph: dict[str, list[str]]) -> Iterator[list[str]]:
    """The first cycle met from each node, by a depth-first walk."""
    done: set[str] = set()
    for start in graph:
        path: list[str] = []
        stack = [(start, 0)]
        while stack:
            name, next_edge = stack.pop()
            if next_edge == 0:
                if name in path:
                    yield [*path[path.index(name) :], name]
                    continue
                if name in done:
                    continue
                path.append(name)
            targets = graph.get(name, [])
            if next_edge < len(targets):
                stack.append((name, next_edge + 1))
                stack.append((targets[next_edge], 0))
            else:
                done.add(path.pop())


def _code_in_inits(modules: dict[str, Module]) -> Iterator[str]:
    for module in modules.values():
        if not module.is_package:
            continue
        for node in module.tree.body:
            if isinstance(node, ast.Import | ast.ImportFrom) or _is_docstring(node):
                continue
            names = _defined(node)
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                continue
            if names == {"__all__"} or (module.room == "" and names and names <= ROOT_NAMES):
                continue
            yield f"{module.name}:{node.lineno}: an __init__ holds re-exports only"


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _defined(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.AnnAssign):
        targets = [node.target]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _environment_reads(modules: dict[str, Module]) -> Iterator[str]:
    for module in modules.values():
        if module.room == "knobs":
            continue
        for node in ast.walk(module.tree):
            reads = isinstance(node, ast.Attribute) and node.attr in ENVIRONMENT
            if isinstance(node, ast.ImportFrom) and node.module == "os":
                reads = any(alias.name in ENVIRONMENT for alias in node.names)
            if reads:
                yield f"{module.name}:{node.lineno}: the environment is read in knobs.py and nowhere else"


def _long_files(modules: dict[str, Module]) -> Iterator[str]:
    for module in modules.values():
        lines = module.text.count("\n")
        if lines > MAX_LINES:
            yield f"{module.name}: {lines} lines, more than {MAX_LINES}"


def _long_functions(modules: dict[str, Module]) -> Iterator[str]:
    for module in modules.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MAX_BODY and f"{module.name}.{node.name}" not in LONG_FUNCTIONS:
                    yield f"{module.name}.{node.name}: {lines} lines, more than {MAX_BODY}"


def _crowded(modules: dict[str, Module]) -> Iterator[str]:
    names: dict[Path, set[str]] = {}
    for module in modules.values():
        inside = module.path.parent if module.is_package else module.path
        names.setdefault(inside.parent, set()).add(inside.name)
    for folder, found in names.items():
        if len(found) > MAX_NAMES:
            yield f"{folder.name}: {len(found)} names in one folder, more than {MAX_NAMES}"
