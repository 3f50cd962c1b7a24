"""Train the bundled demo checkpoint from scratch: tokenizer, model, held-out accuracy.

What: a Qwen3-Next of under a million parameters (gated delta net and full attention in
turn, one sparse layer) that reads documents of `examples.reading` and answers
questions about them in two forms: the log-likelihood of each option after `Answer:`,
and the probability of ` yes` after `Candidate: ...` and `Correct:`.

How: from the root of the repository, with torch, transformers and tokenizers installed,

    python examples/train_demo_model.py --out checkpoint

A model of this size and a run of minutes do not find recall by themselves.  The start
weights lay it out ("mimetic initialisation", see `lay_out_recall` and
`lay_out_comparison`), and training makes it work on text.  The run is seeded and uses
one thread, so that the same machine gives the same weights.
"""

from __future__ import annotations

import argparse
import logging
import math
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional
from transformers import (
    PreTrainedTokenizerFast,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from examples.reading import (
    label_prompt,
    likelihood_prompt,
    make_document,
    sample_text,
)
from server_ext.demo import CHECKPOINT

VOCABULARY: Final = 1600
END: Final = "<|end|>"
PAD: Final = "<|pad|>"
MARKS: Final = ("\n\nQuestion:", "\nAnswer:", "\nCandidate:", "\nCorrect:")
IGNORED: Final = -100

# System and user messages stand as they are, an assistant's message is an answer: the
# chat form of a document and its question is then exactly the likelihood prompt.
CHAT_TEMPLATE: Final = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ '\\nAnswer: ' + message['content'] }}"
    "{% else %}{{ ('' if loop.first else '\\n\\n') + message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '\\nAnswer:' }}{% endif %}"
)

HIDDEN: Final = 128
HEAD: Final = 64
LINEAR, FULL = "linear_attention", "full_attention"
LAYERS: Final = (LINEAR, FULL, LINEAR, FULL)
RECALL, COMPARISON = 0, 2
CONSTANT: Final = 0.3
"""Every embedding has this in its first place: a bias for gates and keys."""

TOKENS_A_STEP: Final = 1536
QUESTIONS_A_DOCUMENT: Final = 12
WARMUP: Final = 60
LABEL_SHARE: Final = 0.6
COOLING: Final = 0.4
STOP_WEIGHT, ANSWER_WEIGHT, VERDICT_WEIGHT = 0.2, 1.0, 2.0

logger = logging.getLogger("train_demo_model")


@dataclass(frozen=True, slots=True)
class Stage:
    """One part of the curriculum: until which share of the run, which documents."""

    until: float
    facts: tuple[int, ...]
    filler: tuple[float, ...]
    relations: tuple[int | None, ...]


STAGES: Final = (
    Stage(0.15, (3, 4, 4, 6), (0.0,), (1, 1, 2, None)),
    Stage(0.35, (4, 6, 8), (0.0, 0.0, 0.5), (1, 2, None)),
    Stage(0.65, (6, 8, 12, 16), (0.0, 0.5, 1.0), (1, 2, None, None)),
    Stage(1.01, (4, 8, 8, 12, 16, 16, 24, 40), (0.5, 1.0, 1.0), (2, None, None)),
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE; the four marks of the prompts are tokens of their own."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(list(sample_text(seed=0, lines=20_000)), trainer)
    core.add_tokens([AddedToken(m, normalized=False, special=False) for m in MARKS])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=END,
        eos_token=END,
        pad_token=PAD,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=8192,
    )


def build_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3NextForCausalLM:
    """The model with its start weights."""
    end, pad = tokenizer.convert_tokens_to_ids([END, PAD])
    sparse = len(LAYERS) - 1
    config = Qwen3NextConfig(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=len(LAYERS),
        layer_types=list(LAYERS),
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=HEAD,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=HEAD,
        linear_value_head_dim=HEAD,
        max_position_embeddings=8192,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=pad,
        num_experts=2,
        # Both experts, always: rounding to bfloat16 can then not change the route.
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        shared_expert_intermediate_size=64,
        mlp_only_layers=[i for i in range(len(LAYERS)) if i != sparse],
        tie_word_embeddings=True,
        initializer_range=0.06,
        dtype="float32",
    )
    model = Qwen3NextForCausalLM(config)
    with torch.no_grad():
        embeddings = model.model.embed_tokens.weight
        embeddings.normal_(0, 0.1)
        embeddings[:, 0] = CONSTANT
        for layer in model.model.layers:
            if hasattr(layer, "linear_attn"):
                prepare(layer.linear_attn)
        lay_out_recall(model.model.layers[RECALL].linear_attn)
        lay_out_comparison(model.model.layers[COMPARISON].linear_attn)
    return model


def parts(mixer: torch.nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """(heads, q/k/v/z, HEAD, HIDDEN) and (q/k/v, heads, HEAD, offsets), as views."""
    heads = mixer.num_k_heads
    projections = mixer.in_proj_qkvz.weight.view(heads, 4, HEAD, HIDDEN)
    return projections, mixer.conv1d.weight.view(3, heads, HEAD, 4)


def rotation() -> torch.Tensor:
    """HEAD orthonormal rows that do not look at the constant place."""
    rows = torch.linalg.qr(torch.randn(HIDDEN, HEAD)).Q.T
    rows[:, 0] = 0
    return rows


def prepare(mixer: torch.nn.Module) -> None:
    """A state that forgets slowly, gates that are open, nothing else in particular."""
    mixer.dt_bias.fill_(math.log(math.expm1(1e-3)))
    mixer.A_log.zero_()
    mixer.in_proj_ba.weight.normal_(0, 0.02)
    projections, window = parts(mixer)
    projections.normal_(0, 0.05)
    projections[:, 3].normal_(0, 0.02)
    projections[:, 3, :, 0] = 0.5
    window.normal_(0, 0.05)


def lay_out_recall(mixer: torch.nn.Module) -> None:
    """An associative memory from an entity to its value.

    At a value the first head writes it under the token two places back, the entity; at
    `Answer:` the entity is two places back as well, and what is read is the value.  The
    second head does the same at three places, for the value's second token.  Small
    windows keep the activation after them close to linear.
    """
    projections, window = parts(mixer)
    for head, places_back in enumerate((2, 3)):
        looked_for, carried = rotation(), rotation()
        projections[head, 0] = projections[head, 1] = looked_for
        projections[head, 2] = carried
        window[:, head] = 0
        window[:2, head, :, 3 - places_back] = 0.2
        window[2, head, :, 3] = 0.2
        mixer.out_proj.weight[:, head * HEAD : (head + 1) * HEAD] = 0.15 * carried.T


def lay_out_comparison(mixer: torch.nn.Module) -> None:
    """Is this token what was foretold?

    The key comes from the place before, where the recalled value is; the query is the
    token itself.  The head forgets at once, so that it says how well the two agree.
    """
    projections, window = parts(mixer)
    same = rotation()
    same[:, 0] = 0.1
    projections[0, 0] = projections[0, 1] = same
    projections[0, 2].normal_(0, 0.02)
    projections[0, 2, :, 0] = torch.randn(HEAD) * 0.5
    window[:, 0] = 0
    window[0, 0, :, 3] = 0.2
    window[1, 0, :, 2] = 0.2
    window[2, 0, :, 3] = 0.2
    mixer.dt_bias[0] = 3.0


class Writer:
    """Turns documents into token rows, with targets and their weights."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, seed: int) -> None:
        self._core = tokenizer.backend_tokenizer
        self._end, self._pad = tokenizer.convert_tokens_to_ids([END, PAD])
        self._rng = random.Random(seed)

    def batch(self, stage: Stage) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Tokens, targets and weights, each (rows, longest)."""
        facts = self._rng.choice(stage.facts)
        filler = self._rng.choice(stage.filler)
        relations = self._rng.choice(stage.relations)
        rows: list[list[tuple[int, int, float]]] = []
        longest = 0
        while (len(rows) + 1) * longest <= TOKENS_A_STEP:
            rows.append(self._row(facts, filler, relations))
            longest = max(longest, len(rows[-1]))
        padding = (self._pad, IGNORED, 0.0)
        full = [row + [padding] * (longest - len(row)) for row in rows]
        by_row = [zip(*row, strict=True) for row in full]
        tokens, targets, weights = zip(*by_row, strict=True)
        return torch.tensor(tokens), torch.tensor(targets), torch.tensor(weights)

    def _row(
        self, facts: int, filler: float, relations: int | None
    ) -> list[tuple[int, int, float]]:
        document = make_document(
            seed=self._rng.getrandbits(60),
            facts=facts,
            questions=min(facts, QUESTIONS_A_DOCUMENT),
            filler=filler,
            relations=relations,
        )
        row = [(token, IGNORED, 0.0) for token in self.encode(document.text)]
        for asked in document.questions:
            gold = asked.options[asked.gold]
            if self._rng.random() >= LABEL_SHARE:
                row += self._answer(asked.question, gold)
                continue
            wrong = [option for option in asked.options if option != gold]
            right = self._rng.random() < 0.5
            shown = gold if right else self._rng.choice(wrong)
            row += self._judge(asked.question, shown, gold)
        return row

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""
        ids: list[int] = self._core.encode(text, add_special_tokens=False).ids
        return ids

    def _answer(self, question: str, gold: str) -> list[tuple[int, int, float]]:
        """The answer, and after it the end."""
        context = self.encode(likelihood_prompt("", question))
        answer = self.encode(f" {gold}")
        row = [(token, IGNORED, 0.0) for token in [*context, *answer]]
        for place, target in enumerate(answer, len(context) - 1):
            row[place] = (row[place][0], target, ANSWER_WEIGHT)
        row[-1] = (row[-1][0], self._end, STOP_WEIGHT)
        return row

    def _judge(
        self, question: str, shown: str, gold: str
    ) -> list[tuple[int, int, float]]:
        """The verdict on a candidate; before it, the right answer is asked for.

        The target under `Candidate:` is the answer, not the candidate that stands
        there: the model then holds both when it comes to `Correct:`.
        """
        context = self.encode(f"\n\nQuestion: {question}\nCandidate:")
        candidate, answer = self.encode(f" {shown}"), self.encode(f" {gold}")
        verdict = self.encode(" yes" if shown == gold else " no")
        tokens = [*context, *candidate, *self.encode("\nCorrect:"), *verdict]
        row = [(token, IGNORED, 0.0) for token in tokens]
        for offset, target in enumerate(answer):
            place = len(context) - 1 + offset
            row[place] = (row[place][0], target, ANSWER_WEIGHT)
            if candidate[offset : offset + 1] != [target]:
                break
        row[-2] = (row[-2][0], verdict[0], VERDICT_WEIGHT)
        return row


def train(model: Qwen3NextForCausalLM, writer: Writer, steps: int, peak: float) -> None:
    """The whole run."""
    decayed = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": 0.02},
            {"params": plain, "weight_decay": 0.0},
        ],
        betas=(0.9, 0.98),
    )
    begun = time.monotonic()
    for step in range(steps):
        progress = step / steps
        cosine = 0.5 * (1 + math.cos(math.pi * progress))
        for group in optimizer.param_groups:
            warm = min(1, (step + 1) / WARMUP)
            group["lr"] = peak * warm * (0.05 + 0.95 * cosine)
        batch = writer.batch(next(s for s in STAGES if progress < s.until))
        loss = answer_loss(model, *batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0:
            spent = time.monotonic() - begun
            logger.info("step %d loss %.3f %.0f s", step, loss.item(), spent)


def answer_loss(
    model: Qwen3NextForCausalLM,
    tokens: torch.Tensor,
    targets: torch.Tensor,
    weights: torch.Tensor,
) -> torch.Tensor:
    """Weighted mean cross-entropy over the rows that have a target."""
    hidden = model.model(input_ids=tokens, use_cache=False).last_hidden_state
    rows = targets != IGNORED
    logits = functional.linear(hidden[rows], model.lm_head.weight)
    losses = functional.cross_entropy(logits, targets[rows], reduction="none")
    return (losses * weights[rows]).sum() / weights[rows].sum()


def last_logprobs(
    model: Qwen3NextForCausalLM,
    contexts: Sequence[list[int]],
    tails: Sequence[list[int]],
) -> list[float]:
    """The sum of the log-probabilities of each tail after its context."""
    rows = [[*c, *t] for c, t in zip(contexts, tails, strict=True)]
    longest = max(map(len, rows))
    tokens = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    with torch.no_grad():
        logits = model(input_ids=tokens, use_cache=False).logits.float().log_softmax(-1)
    return [
        sum(logits[i, len(c) + j - 1, token].item() for j, token in enumerate(t))
        for i, (c, t) in enumerate(zip(contexts, tails, strict=True))
    ]


def accuracy(
    model: Qwen3NextForCausalLM, writer: Writer, facts: int, documents: int
) -> dict[str, float]:
    """Held-out accuracy of both modes, four questions a document."""
    right = {"likelihood": 0, "label": 0}
    asked = 0
    for seed in range(documents):
        document = make_document(
            seed=seed, facts=facts, questions=min(4, facts), held_out=True
        )
        for q in document.questions:
            context = writer.encode(likelihood_prompt(document.text, q.question))
            tails = [writer.encode(f" {o}") for o in q.options]
            sums = last_logprobs(model, [context] * len(tails), tails)
            prompts = [
                writer.encode(label_prompt(document.text, q.question, o))
                for o in q.options
            ]
            yes = [writer.encode(" yes")] * len(prompts)
            labels = last_logprobs(model, prompts, yes)
            right["likelihood"] += sums.index(max(sums)) == q.gold
            right["label"] += labels.index(max(labels)) == q.gold
            asked += 1
    return {mode: round(count / asked, 4) for mode, count in right.items()}


def save(
    model: Qwen3NextForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path
) -> Qwen3NextForCausalLM:
    """Write a bfloat16 copy; vLLM ties no weights here, so the head gets its own.

    The copy is cooled: bfloat16 keeps eight bits, so that a logit of 20 is known to
    0.12 only, and training left the logits as large as they would go.
    """
    config = Qwen3NextConfig.from_dict(
        {**model.config.to_dict(), "tie_word_embeddings": False, "dtype": "bfloat16"}
    )
    copy = Qwen3NextForCausalLM(config).to(torch.bfloat16)
    copy.load_state_dict(model.state_dict())
    with torch.no_grad():
        # Qwen3-Next's norms multiply by one plus their weight.
        copy.model.norm.weight.copy_((1 + model.model.norm.weight) * COOLING - 1)
    folder.mkdir(parents=True, exist_ok=True)
    copy.save_pretrained(folder)
    tokenizer.save_pretrained(folder, save_jinja_files=False)
    return copy


def main() -> None:
    """Train, save and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=CHECKPOINT)
    parser.add_argument("--steps", type=int, default=1800)
    parser.add_argument("--peak", type=float, default=3e-3, help="learning rate")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    logger.info("%d parameters", sum(p.numel() for p in model.parameters()))
    writer = Writer(tokenizer, options.seed)
    train(model, writer, options.steps, options.peak)
    served = save(model, tokenizer, options.out)
    for facts in (4, 8, 16, 40):
        figures = accuracy(served, writer, facts, 50)
        logger.info("held out, %d facts: %s", facts, figures)


if __name__ == "__main__":
    main()
