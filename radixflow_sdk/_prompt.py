"""The text around question and option.

Text is concatenated, never formatted, so braces and percent signs are safe. The server
finds the token boundary.
"""

from __future__ import annotations

from dataclasses import dataclass

from radixflow_sdk._messages import Message
from radixflow_sdk._requests import Label, Scoring
from radixflow_sdk._validate import refuse


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    r"""The text around question and option, for one kind of scoring.

    The prompt is: document, ``before_question + question + after_question`` (nothing
    without a question), ``before_option + option + after_option``. With chat messages
    as the document, the question becomes a last user message, ``before_question``
    without its leading whitespace and without ``after_question``, since the chat
    template prompts for the answer; where that template ends in whitespace, use
    ``before_option=""``. Options given as token ids are sent as they are.

    Attributes:
        before_question: For example ``"\n\nQuestion: "``.
        after_question: For example ``"\nAnswer:"``.
        before_option: The delimiter before an option; not counted by ``normalize``.
        after_option: For label scoring, the text that prompts for the label.
        labels: For label scoring, the labels; the first one's log-probability is the
            score.

    Raises:
        InvalidInputError: A part is not text.
    """

    before_question: str = "\n\nQuestion: "
    after_question: str = "\nAnswer:"
    before_option: str = " "
    after_option: str = ""
    labels: tuple[Label, ...] | None = None

    def __post_init__(self) -> None:
        parts = ("before_question", "after_question", "before_option", "after_option")
        for name in parts:
            value: object = getattr(self, name)
            if not isinstance(value, str):
                raise refuse(f"template.{name}", value, "give text")

    def ask(self, question: str) -> str:
        """The text between document and option."""
        return self.before_question + question + self.after_question

    def ask_in_chat(self, question: str) -> Message:
        """The question as the last user message."""
        return Message(role="user", content=self.before_question.lstrip() + question)

    def offer(self, option: str) -> str:
        """The option as it is scored."""
        return self.before_option + option + self.after_option


LIKELIHOOD = Template()
LABEL = Template(
    after_question="",
    before_option="\nCandidate: ",
    after_option="\nCorrect:",
    labels=(" yes", " no"),
)


def default_template(scoring: Scoring) -> Template:
    """The template of a call without one."""
    return LABEL if scoring == "label" else LIKELIHOOD
