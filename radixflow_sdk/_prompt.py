"""The text around question and option.

Text is joined, never formatted, so braces and percent signs in a document, a question
or an option stay what they are. The server finds the token boundary.
"""

from __future__ import annotations

from dataclasses import dataclass

from radixflow_sdk._messages import Message
from radixflow_sdk._requests import Label, Scoring
from radixflow_sdk.exceptions import InvalidInputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    r"""The words around question and option, for one kind of scoring.

    The server reads: document, ``before_question + question + after_question`` (nothing
    without a question), ``before_option + option + after_option``. With chat messages
    as the document, the question becomes a last user message, ``before_question``
    without its leading blanks and without ``after_question``, since the model's chat
    template asks for the answer; where that template ends in a blank or a line break,
    use ``before_option=""``. Options given as token ids are sent as they are.

    Attributes:
        before_question: For example ``"\n\nQuestion: "``.
        after_question: For example ``"\nAnswer:"``.
        before_option: The delimiter before an option; not counted by ``normalize``.
        after_option: For label scoring, what asks for the label.
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
                raise InvalidInputError(
                    f"template.{name} is {value!r}; give text.",
                    field=f"template.{name}",
                    value=value,
                )

    def ask(self, question: str) -> str:
        """The question as it stands between document and option."""
        return self.before_question + question + self.after_question

    def ask_in_chat(self, question: str) -> Message:
        """The question as a last user message."""
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
    """The template that is used when a call names none."""
    return LABEL if scoring == "label" else LIKELIHOOD
