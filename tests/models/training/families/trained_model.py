"""A drafter of any family as its training begins, with weights that do something and are as exported."""

from dataclasses import replace

import torch

from outrider_drafters.checkpoints.source import DrafterSource
from outrider_drafters.load import load_drafter, load_tap
from outrider_models.training.families import trainable_family


def trained_model(teacher, name, **changes):
    """One with these settings in place of the family's defaults; random, the same every time."""
    family = trainable_family(name)
    settings = replace(family.defaults(teacher.facts), **changes)
    torch.manual_seed(3)
    model = family.make_drafter(settings, teacher.facts, lambda: torch.arange(teacher.facts.sizes.vocab) % 7)
    model.init_from_lm_head(teacher.lm_head)
    teacher.restrict(model.draft_tokens)
    with torch.no_grad():
        for parameter in (parameter for parameter in model.parameters() if parameter.requires_grad):
            parameter.add_(torch.randn_like(parameter) * 0.1)
            parameter.copy_(parameter.bfloat16())
    return model


def exported(teacher, model, directory, tokens):
    """The drafter that a model's files give, and its tap's rows of these tokens; None without a tap."""
    model.write(directory)
    source = DrafterSource(str(directory), model.options)
    drafter, tap = load_drafter(source, teacher.target_weights()), load_tap(source, teacher.facts.directory)
    if tap is None:
        return drafter, None
    return drafter, tap.new_state().rows(teacher.activations(tokens[None], tap.needs_kv, tap.hidden_layers))
