"""Mutants of morok/codegen/decompose that survive."""

SURVIVORS: dict[str, str] = {
    "morok.codegen.decompose.trigonometric.atan2: bits_of(x) < 0 → bits_of(x) < -1": (
        "they differ for the bits -1 only, which are a NaN, and the last line makes NaN of it"
    ),
}
