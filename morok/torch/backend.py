"""The backend that `torch.compile(model, backend="morok")` finds by its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from morok.rewrite.gc_pause import settle
from morok.torch.attention import with_own_attention
from morok.torch.compiled import Compiled
from morok.torch.decompositions import decompositions
from morok.torch.options import Options
from morok.torch.partition import partition
from morok.torch.private import aot_autograd


def morok(
    gm: Any, example_inputs: Sequence[Any], *, mode: str | None = None, options: dict[str, Any] | None = None
) -> Callable[..., Any]:
    """The backend: forward and backward graphs become plans of morok's."""
    chosen = Options.of(mode, options)
    with_own_attention(gm)

    def compiler(graph: Any, inputs: Sequence[Any]) -> Any:
        return boxed(Compiled(graph, inputs, chosen))

    def one_of_two(graph: Any, inputs: Sequence[Any]) -> Any:
        return boxed(Compiled(graph, inputs, chosen, training=True))

    made = aot_autograd(
        fw_compiler=one_of_two,
        bw_compiler=one_of_two,
        inference_compiler=compiler,
        decompositions=decompositions(),
        partition_fn=partition,
    )(gm, example_inputs)
    settle()
    return made  # type: ignore[no-any-return]


def boxed(compiled: Compiled) -> Callable[[list[Any]], Any]:
    """With arguments in a list, which is emptied: what nobody else holds is freed when it is used up."""

    def call(args: list[Any]) -> Any:
        given = list(args)
        args.clear()
        return compiled(given)

    call._boxed_call = True  # type: ignore[attr-defined]
    call.compiled = compiled  # type: ignore[attr-defined]
    return call
