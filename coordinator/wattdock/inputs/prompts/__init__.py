"""What one pass sends: prompts from a source, each with its output limit.

In: an experiment and the numbers of a restart and a pass. Out: a `PromptSet`, the same for equal arguments on every
machine.
Must not know: models beyond the size of their vocabulary, tokenizers, runners.
"""

from wattdock.inputs.prompts.passes import PromptSet, check_prompts, load_prompts

__all__ = ["PromptSet", "check_prompts", "load_prompts"]
