"""LLVM through llvmlite: text → object code → callable addresses. No C compiler, no linker on the machine.

Object code is plain bytes, so it can be kept on disk and linked again by another process of the same machine
without LLVM's optimiser or code generator ever running. LLVM's own passes are not run: the list of
instructions is already vectorised, shared and hoisted, and the passes of its code generator do the rest.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Any, final

from morok.device.cpu.objects import link
from morok.device.store import disk_store
from morok.errors import CompileError, DeviceError
from morok.forks import Held, at_fork
from morok.ir.digest import blake2b
from morok.machine.permission import permitted
from morok.machine.processor import Processor
from morok.render.llvm.pointers import AS_FAST


@cache
def binding() -> Any:
    """llvmlite, loaded and initialised once."""
    try:
        import llvmlite.binding as llvm

        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    except RuntimeError:  # newer versions do it by themselves
        pass
    except (ImportError, OSError, MemoryError) as error:
        first = str(error).partition(". ")[0]
        raise DeviceError(f"LLVM cannot be loaded; perhaps there is too little memory: {first}") from None
    return llvm


@cache
def host() -> Processor:
    """The processor of this machine, without what the system does not let this process use."""
    return permitted(_found_host())


def _found_host() -> Processor:
    """As it was found before, or by asking LLVM."""
    store, key = disk_store(), host_key()
    known = None if store is None or key is None else store.get_version(key)
    parts = [] if known is None else known.split("\n")
    if len(parts) == 3:
        return Processor(*parts)
    llvm = binding()
    features = ",".join((llvm.get_host_cpu_features().flatten(), *kernel_features()))
    found = Processor(llvm.get_process_triple(), llvm.get_host_cpu_name(), features)
    if store is not None and key is not None:
        store.put_version(key, f"{found.triple}\n{found.cpu}\n{found.features}")
    return found


# What /proc/cpuinfo says of each core, and what changes from one moment to the next.
_OF_A_CORE = ("processor", "cpu MHz", "bogomips", "apicid", "initial apicid", "core id", "physical id")


def host_key(path: str = "/proc/cpuinfo") -> str | None:
    """All that LLVM's answer can depend on: what the system says of its processors, and LLVM's own file."""
    package = find_spec("llvmlite")  # which does not load it
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = {line for line in file if line.partition("\t")[0].strip() not in ("", *_OF_A_CORE)}
        assert package is not None and package.origin is not None
        library = os.stat(os.path.join(os.path.dirname(package.origin), "binding", "libllvmlite.so"))
    except (OSError, AssertionError):
        return None
    of_llvm = f"{package.origin} {library.st_size} {library.st_mtime_ns} {library.st_ctime_ns}"
    said = "".join(sorted(lines))
    return f"processor|{blake2b(f'{os.uname()}{of_llvm}{said}'.encode(), digest_size=16).hexdigest()}"


_KERNEL_FEATURES = {"asimddp": "+dotprod"}  # which Linux knows of an ARM processor and LLVM does not ask for


def kernel_features(path: str = "/proc/cpuinfo") -> tuple[str, ...]:
    """Features that the system names, as LLVM calls them."""
    try:
        with open(path, encoding="utf-8") as file:
            words = frozenset(w for line in file if line.startswith("Features") for w in line.split())
    except OSError:
        return ()
    return tuple(name for word, name in _KERNEL_FEATURES.items() if word in words)


class _Machines(threading.local):
    """LLVM's target machines are not for several threads at once, so each thread has its own."""

    def __init__(self) -> None:
        self.known: dict[tuple[Processor, int], Any] = {}


_machines = _Machines()


def _target_machine(processor: Processor, level: int) -> Any:
    key = (processor, level)
    found = _machines.known.get(key)
    if found is None:
        llvm = binding()
        target = llvm.Target.from_triple(processor.triple)
        found = target.create_target_machine(
            cpu=processor.cpu, features=processor.features, opt=level, reloc="pic", codemodel="default"
        )
        _machines.known[key] = found
    return found


def _parse(text: str, processor: Processor) -> Any:
    llvm = binding()
    try:
        context = llvm.create_context()
        module = llvm.parse_assembly(text, context)
        module.triple = processor.triple
        module.verify()
    except RuntimeError as error:
        raise CompileError(f"LLVM refused the generated code: {str(error).strip()}") from None
    return module


@contextmanager
def _moved_pointers(processor: Processor) -> Iterator[None]:
    """LLVM does not look for pointers that loops could move: the text moves them itself
    (`render/llvm/pointers.py`).

    The search was a third of LLVM's time. It has no other switch than one for the whole process, which is
    given back, for whoever else uses LLVM here.
    """
    if processor.arch not in AS_FAST:
        yield
        return
    llvm = binding()
    llvm.set_option("", "-disable-lsr")
    try:
        yield
    finally:
        llvm.set_option("", "-disable-lsr=false")


def compile_object(text: str, processor: Processor | None = None, level: int = 2) -> bytes:
    """LLVM IR as relocatable object code."""
    where = processor or host()
    module = _parse(text, where)
    with _moved_pointers(where):
        code: bytes = _target_machine(where, level).emit_object(module)
    return code


def compile_assembly(text: str, processor: Processor | None = None, level: int = 2) -> str:
    """LLVM IR as assembly, for people."""
    where = processor or host()
    module = _parse(text, where)
    with _moved_pointers(where):
        assembly: str = _target_machine(where, level).emit_assembly(module)
    return assembly


def assemble(assembly: str, processor: Processor | None = None, level: int = 2) -> bytes:
    """Assembly of a processor of this kind as object code: LLVM reads it where a module may have some of its
    own, in a fifth of the time in which it would choose the instructions again."""
    where = processor or host()
    _asm_parser()
    lines = assembly.replace("\\", "\\5C").replace('"', "\\22").split("\n")
    module = _parse("\n".join([f'module asm "{line}"' for line in lines]), where)
    try:
        code: bytes = _target_machine(where, level).emit_object(module)
    except RuntimeError as error:
        raise CompileError(f"LLVM refused its own assembly: {str(error).strip()}") from None
    return code


@cache
def _asm_parser() -> None:
    binding().initialize_native_asmparser()


_link_lock = threading.RLock()  # code dies whenever its last holder does, also in here


def _renew_lock() -> None:
    global _link_lock
    _link_lock = threading.RLock()


def _inside_llvm() -> Any:
    """The lock under which llvmlite calls LLVM, one thread at a time; None before it is loaded."""
    loaded = sys.modules.get("llvmlite.binding.ffi")
    return None if loaded is None else getattr(getattr(loaded.lib, "_lock", None), "_lock", None)


def _renew_llvm() -> None:
    if _inside_llvm() is not None:
        sys.modules["llvmlite.binding.ffi"].lib._lock._lock = threading.RLock()


at_fork(child=_renew_lock)  # whoever held it has not come along
# Nobody may be inside of LLVM while the process forks: neither its locks nor its tables would be whole.
Held(_inside_llvm, _renew_llvm)


@final
class _Linker:
    """LLVM's linker, for so many objects, and how many of them are alive.

    It keeps some kilobytes of every object that it has linked, also when the object is gone. So after some of
    them another one takes over, and the first goes with the last of its objects.
    """

    __slots__ = ("alive", "jit", "linked")

    def __init__(self) -> None:
        llvm = binding()
        machine = llvm.Target.from_triple(host().triple).create_target_machine(
            cpu=host().cpu, features=host().features, opt=2, jit=True
        )
        # JITLink lays an object out in one piece. The older linker takes its sections from anywhere, and
        # code that lies too far from its own constants reads others (llvm-project #71963).
        self.jit = llvm.create_lljit_compiler(machine, use_jit_link=True)
        self.linked = self.alive = 0


_OBJECTS = 128
_linkers: list[_Linker] = []  # the last one links; the others wait for the end of their objects


def _release(linker: _Linker) -> None:
    with _link_lock:
        linker.alive -= 1
        if not linker.alive and linker is not _linkers[-1]:
            _linkers.remove(linker)


@final
class Code:
    """Object code in this process's memory. The memory goes back when the object dies."""

    __slots__ = ("_image", "_library", "_linker", "addresses")

    def __init__(self, code: bytes, symbols: Sequence[str]) -> None:
        self._library: Any = None
        found = link(code, symbols)
        if found is not None:
            self._image, self.addresses = found
            return
        llvm = binding()
        with _link_lock:
            if not _linkers or _linkers[-1].linked >= _OBJECTS:
                if _linkers and not _linkers[-1].alive:
                    _linkers.pop()
                _linkers.append(_Linker())
            linker = _linkers[-1]
            linker.linked += 1
            builder = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
            for symbol in symbols:
                builder = builder.export_symbol(symbol)
            try:
                self._library = builder.link(linker.jit, f"kernel{linker.linked}")
            except RuntimeError as error:
                raise CompileError(f"the object code could not be linked: {str(error).strip()}") from None
            self._linker = linker
            linker.alive += 1
        self.addresses = {symbol: self._library[symbol] for symbol in symbols}

    def __del__(
        self, ending: Callable[[], bool] = sys.is_finalizing, release: Callable[[_Linker], None] = _release
    ) -> None:
        # In this order, whoever found that nobody needs it: the linker must outlive what it has linked. The
        # process takes its modules apart before their objects; at that time nothing need be freed.
        if self._library is not None and not ending():
            self._library.close()
            release(self._linker)
