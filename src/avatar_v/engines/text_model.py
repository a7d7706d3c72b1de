"""A text model of the user's: any causal language model of transformers with a chat template.

It answers in JSON whose form is given: of every token that it may choose those are left that go on
with such an answer (llguidance). Nothing is downloaded, and no code of the folder is run. No such
model ships.
"""

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
import torch
from jaxtyping import Float, Int
from torch import Tensor

from avatar_v.base.local_models import load_part, load_whole
from avatar_v.base.outside import parse_json
from avatar_v.base.stored import shown
from avatar_v.engines.checks import TEXT_MODELS, check_text_model

MOST_S = 600.0
"""Seconds of wall clock that one answer may take."""
MOST_OVERHEAD = 64
"""Tokens of an answer that are none of its texts: names, quotes and braces."""
HOW_TO_INSTALL = "answers of a given form need llguidance: pip install 'avatar_v[writing]'"


class UnusableError(ValueError):
    """An answer that cannot be used; another seed may give one that can."""


class TextModel:
    """The model in a folder; on a GPU where there is one. ValueError for one that is none."""

    def __init__(self, folder: str | Path) -> None:
        check_text_model(folder)
        if importlib.util.find_spec("llguidance") is None:
            raise ValueError(HOW_TO_INSTALL)
        from llguidance.hf import from_tokenizer
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.folder = folder
        self._tokenizer = load_part(AutoTokenizer, folder, TEXT_MODELS)
        if not self._tokenizer.chat_template:
            raise ValueError(f"{folder} has no chat template; expected {TEXT_MODELS}")
        self._model = load_whole(AutoModelForCausalLM, folder, TEXT_MODELS, dtype="auto")
        ends = self._model.generation_config.eos_token_id
        ends = {self._tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])}
        self._ends = sorted(end for end in ends if end is not None)
        try:
            num = self._model.get_output_embeddings().weight.shape[0]
            self._tokens = from_tokenizer(self._tokenizer, n_vocab=num, eos_token=self._ends)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{folder}: its tokenizer is not taken ({error})") from error

    @torch.inference_mode()
    def answer(
        self, question: str, texts: Mapping[str, Mapping[str, Any]], *, seed: int
    ) -> dict[str, str]:
        """Texts by name, drawn with ``seed``. ``texts`` has the JSON schema of each string, with
        its ``maxLength``.

        UnusableError for an answer that ended before its end. ValueError for a template that takes
        no question, a question that leaves no room, and weights that give no finite numbers.
        """
        inputs = self._inputs(question)
        length = inputs["input_ids"].shape[1]
        most = MOST_OVERHEAD + sum(text["maxLength"] for text in texts.values())
        room = self._model.config.to_dict().get("max_position_embeddings", length + most) - length
        if room < MOST_OVERHEAD:
            raise ValueError(f"{self.folder}: the question leaves no room for an answer")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            made = self._model.generate(
                **inputs,
                do_sample=True,
                num_beams=1,
                max_new_tokens=min(room, most),
                max_time=MOST_S,
                logits_processor=[_Constrained(self._tokens, texts)],
                eos_token_id=self._ends,
                pad_token_id=self._ends[0],
            )
        said = self._tokenizer.decode(made[0, length:], skip_special_tokens=True)
        try:
            return parse_json(said, where="the answer")
        except ValueError as error:
            raise UnusableError(f"it ended before its end: {shown(said)}") from error

    def _inputs(self, question: str) -> Any:
        try:
            inputs = self._tokenizer.apply_chat_template(
                [{"role": "user", "content": question}],
                add_generation_prompt=True,
                enable_thinking=False,  # of templates that know it
                return_tensors="pt",
                return_dict=True,
            )
        except (jinja2.TemplateError, TypeError) as error:
            raise ValueError(f"{self.folder}: its chat template takes no question ({error})"
                             ) from error  # fmt: skip
        return inputs.to(self._model.device)


class _Constrained:
    """A processor of logits: leaves the tokens that go on with JSON of these texts."""

    def __init__(self, tokens: Any, texts: Mapping[str, Mapping[str, Any]]) -> None:
        from llguidance import LLMatcher

        schema = {
            "type": "object",
            "properties": {name: {"type": "string", **text} for name, text in texts.items()},
            "required": list(texts),
            "additionalProperties": False,
            "x-guidance": {"whitespace_flexible": False},
        }
        grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema))
        self._matcher, self._is_first = LLMatcher(tokens, grammar), True
        assert not self._matcher.is_error(), self._matcher.get_error()

    def __call__(
        self, input_ids: Int[Tensor, "1 n"], scores: Float[Tensor, "1 tokens"]
    ) -> Float[Tensor, "1 tokens"]:
        if not self._is_first:
            self._matcher.consume_token(int(input_ids[0, -1]))
        self._is_first = False
        allowed = torch.frombuffer(bytearray(self._matcher.compute_logit_bias()), dtype=torch.uint8)
        allowed = allowed[: scores.shape[1]].to(scores.device) > 0
        if not bool(torch.isfinite(scores[0, allowed]).all()):
            raise ValueError("the text model gives numbers that are not finite")
        return scores.masked_fill(~allowed, -torch.inf)
