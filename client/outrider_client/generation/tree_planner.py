"""Plans an answer's draft trees: as configured, as the drafter was made for, as the controller chose, or as they pay.

Every plan stays within the limits of context and server.
"""

from __future__ import annotations

from outrider_client.core.config import AUTO_LIMITS, ClientConfig
from outrider_client.generation.context import GenerationContext
from outrider_drafters.contracts.tree_shape import TreePlan, TreeShape
from outrider_proto.errors import LinkError, UsageError
from outrider_proto.frames import ServerTree
from outrider_proto.tree import MAX_NODES


class TreePlanner:
    """Plans the trees of one answer."""

    def __init__(self, config: ClientConfig, context: GenerationContext) -> None:
        self._config = config
        self._models = context.models
        self._session = context.session
        self._controller = context.controller

    def begin(self) -> None:
        self._controller.begin(self._config, self._own)

    def plan(self, num_tokens: int, room: int, *, ahead: bool = False) -> TreePlan | None:
        """Plan a draft on `num_tokens` tokens with `room` for more, or one `ahead` of a verdict; None if none fits."""
        choice = self._controller.choice
        chosen = None if choice is None else choice.ahead_shape if ahead else choice.shape
        if self._tunes:
            chosen = self._controller.tuned(self._config.shape or chosen, ahead=ahead)
        return self._fitted(num_tokens, room, chosen)

    def server_tree(self) -> ServerTree:
        """Plan the server's own drafts. Raises UsageError if it does not draft, LinkError without a link."""
        limits = self._session.limits
        if limits is None:
            raise LinkError("no server has been reached")
        if not limits.server_draft:
            raise UsageError(
                "mode=server-draft: the server does not draft for this session; start it with --server-draft"
            )
        choice = self._controller.choice
        plan = self._config.shape or (None if choice is None else choice.shape)
        shape = plan if isinstance(plan, TreeShape) else AUTO_LIMITS if self._tunes else TreeShape()
        return ServerTree.within(shape.breadth, shape.levels, min(shape.budget, limits.max_nodes), auto=self._tunes)

    @property
    def max_context(self) -> int:
        """Largest context of server and target, in tokens."""
        limits, own = self._session.limits, self._models.max_context
        return own if limits is None else min(limits.max_context, own)

    @property
    def max_nodes(self) -> int:
        limits = self._session.limits
        return MAX_NODES if limits is None else min(limits.max_nodes, MAX_NODES)

    @property
    def draft_nodes(self) -> int:
        """Largest number of nodes in a draft: fewer while a busy server asks for it."""
        return min(self.max_nodes, self._session.tree_budget or MAX_NODES)

    @property
    def _tunes(self) -> bool:
        """True if trees are made as large as they pay."""
        config = self._config
        if config.tree is None:
            return config.mode == "auto" and config.shape is None and self._own is None
        return config.tree == "auto"

    @property
    def _own(self) -> TreePlan | None:
        return None if self._models.drafter is None else self._models.drafter.plan

    def _fitted(self, num_tokens: int, room: int, chosen: TreeShape | None) -> TreePlan | None:
        if self._tunes and chosen is not None:
            plan: TreePlan = chosen
        else:
            plan = self._config.shape or self._own or chosen or TreeShape()
        if self._controller.choice is None:
            # With a fixed mode trees are not cut at the answer's end: its tau counts whole trees, as published ones do.
            room = self.max_context
        levels = min(self.max_context - num_tokens, room) - 1  # the bonus needs room as well
        return plan.fitted(min(levels, self.draft_nodes), self.draft_nodes)
