"""Every exception that morok raises on purpose.

A message is one sentence that says what was wrong and, where there is one, what would be right. The place,
when it is known, is the *user's* file and line, so that an error deep in the compiler still points home.
"""

from __future__ import annotations


class MorokError(Exception):
    """The root of all of them: `except MorokError` catches what morok says and lets real bugs through."""

    def __init__(self, message: str, *, place: str | None = None) -> None:
        super().__init__(message)
        self.place = place

    @property
    def message(self) -> str:
        """The sentence without its place."""
        return str(self.args[0])

    def __str__(self) -> str:
        return f"{self.message} (at {self.place})" if self.place else self.message


class IRError(MorokError):
    """A node that may not exist: unknown op, wrong number of sources, an argument of the wrong type."""


class ParseError(MorokError):
    """Text that is not what it should be, with the position (from 1) where reading stopped."""

    def __init__(self, message: str, line: int = 0, column: int = 0, *, place: str | None = None) -> None:
        super().__init__(message, place=place)
        self.line = line
        self.column = column

    def __str__(self) -> str:
        where = f"line {self.line}, column {self.column}: " if self.line else ""
        return where + super().__str__()


class RuleError(MorokError):
    """A rule or rule set that cannot be built: unbound variable, unreachable rule, no termination."""


class RewriteCycle(MorokError):
    """Rules that undo each other; the message names them."""


class SpecError(MorokError):
    """A graph that breaks the spec of the boundary it stands at."""


class ShapeError(MorokError):
    """Shapes that do not fit together."""


class SizesDiffer(ShapeError):
    """Sizes that have to be equal, and are not, or not always."""


class AssignError(MorokError):
    """A write to something that is no place: repeated elements, a value, memory that is only to be read."""


class OutOfRange(MorokError, IndexError):
    """A position that an axis does not have, or a label that is no class; known before it runs or not."""


class OperandError(MorokError, TypeError):
    """Something that a tensor of this kind cannot do: no length without axes, no index that is a float."""


class DTypeError(MorokError):
    """Types that do not fit together, or a value that its type cannot hold."""


class ArgumentError(MorokError, ValueError):
    """A value that an argument does not take: a name that there is not, a number outside of its interval."""


class KnobError(MorokError):
    """An option that does not exist, or a value it does not take."""


class VariableError(MorokError):
    """A symbolic size that is unbound, or bound outside its interval."""


class MachineError(MorokError):
    """A description of a machine that there is not, or that cannot be understood."""


class DeviceError(MorokError):
    """A device that is missing, or that failed."""


class MeshError(MorokError):
    """A mesh of devices that cannot be, a tensor that does not lie on one, or ranks that do not agree."""


class FormatError(MorokError):
    """A file that is not what it says it is: cut off, inconsistent, or asking for something it may not."""


class UnsupportedModel(MorokError):
    """A model that is well formed and asks for something that is not there; the message names the node."""


class CompileError(MorokError):
    """Generated code that the target's own compiler refused."""


class OutOfMemory(MorokError, MemoryError):
    """A device, or the host, that has no room left."""


class ProofError(MorokError):
    """A proof that could not be attempted, or a rule that was refuted."""
