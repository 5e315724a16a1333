"""The draft tree: drafted tokens, each with a parent, and its queries.

            root (last committed token, not in the tree)         parents = (-1, -1, 0, 0, 1)
           /    \\
          0      1          node 0.. in topological order: a parent's number is always smaller;
         / \\      \\         ROOT = -1 stands for the root; depth counts from 1 for its children
        2   3      4
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outrider_proto.errors import Reason, Violation

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ROOT = -1
MAX_NODES = 255  # a parent travels as one byte, 0 being the root


@dataclass(frozen=True, slots=True)
class DraftTree:
    """Drafted tokens and their parents.

    Raises Violation when the lengths differ, a parent is not an earlier node or the root, two siblings carry the same
    token, or there are more than MAX_NODES nodes.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.parents):
            raise _malformed(f"{len(self.tokens)} tokens but {len(self.parents)} parents")
        if len(self.tokens) > MAX_NODES:
            raise Violation(Reason.TREE_TOO_LARGE, f"{len(self.tokens)} nodes: at most {MAX_NODES}")
        for node, parent in enumerate(self.parents):
            if not ROOT <= parent < node:
                raise _malformed(f"node {node} has parent {parent}: need {ROOT} or an earlier node")
        if len(set(zip(self.parents, self.tokens, strict=True))) != len(self.tokens):
            raise _malformed("two children of one node carry the same token")

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def chain(cls, tokens: Sequence[int]) -> DraftTree:
        """Create a tree without branches."""
        return cls(tuple(tokens), tuple(range(ROOT, len(tokens) - 1)))

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise Violation for a token id outside [0, vocab_size)."""
        for node, token in enumerate(self.tokens):
            if not 0 <= token < vocab_size:
                raise Violation(
                    Reason.TOKEN_OUT_OF_VOCABULARY, f"node {node} has token {token}: the vocabulary has {vocab_size}"
                )

    def depths(self) -> tuple[int, ...]:
        """Return the depth of every node; children of the root have depth 1."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return tuple(depths)

    def ancestors(self) -> NDArray[np.bool_]:
        """Return a [nodes, nodes] bool mask: entry (i, j) says that j is i or an ancestor of i."""
        # Here, since every command line imports this module.
        import numpy as np

        mask = np.eye(len(self), dtype=np.bool_)
        for node, parent in enumerate(self.parents):
            if parent != ROOT:
                mask[node] |= mask[parent]
        return mask

    def child(self, node: int, token: int) -> int | None:
        """Return the child of `node` (or ROOT) that carries `token`, if drafted."""
        for i in range(node + 1, len(self)):
            if self.parents[i] == node and self.tokens[i] == token:
                return i
        return None

    def path_tokens(self, path: Sequence[int]) -> tuple[int, ...]:
        """Return the tokens along `path`, a chain of nodes from a child of the root.

        Raises Violation for any other sequence of nodes.
        """
        parent = ROOT
        for node in path:
            if not 0 <= node < len(self) or self.parents[node] != parent:
                raise Violation(Reason.MALFORMED_FRAME, f"path {list(path)} does not follow the tree from its root")
            parent = node
        return tuple(self.tokens[node] for node in path)


def _malformed(message: str) -> Violation:
    return Violation(Reason.MALFORMED_TREE, message)
