"""Graph -> Graph rewrites. Each is a file of its own; the plain path needs none but ``functionalise``."""

from tvae.pipeline.engine.graph import Graph
from tvae.pipeline.engine.passes.functionalise import functionalise
from tvae.pipeline.engine.passes.identities import remove_identities

__all__ = ["functionalise", "remove_identities", "simplify"]


def simplify(graph: Graph) -> Graph:
    """Every pass, in order."""
    return remove_identities(functionalise(graph))
