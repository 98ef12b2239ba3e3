"""Rewriting: the language of rules, matchers, the engine that applies them to a fixpoint, stages, specs."""
