"""morok: an ML compiler. Importing it is cheap; each public name loads its room when it is first used."""

from importlib import import_module

__version__ = "0.1.0"

# public name → the module that defines it
_EXPORTS: dict[str, str] = {}

__all__ = ["__version__", *_EXPORTS]


def __getattr__(name: str) -> object:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'morok' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_EXPORTS[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
