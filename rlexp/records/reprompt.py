"""The wording of a teacher's prompt, in one place: models are warm-started on exactly what `algorithm=sdpo` asks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Templates:
    """Texts with places: reprompt {prompt}, {solution}, {feedback}; solution {successful_previous_attempt}; feedback {feedback_raw}."""

    reprompt: str
    solution: str
    feedback: str

    def filled(self, prompt: str, solution: str | None, feedback: str | None) -> str:
        """The text of the teacher's prompt; None leaves a place empty.

        Each template is filled once and what is put in is never read as a template, so braces in a prompt, a solution or feedback stay.
        """
        shown = "" if solution is None else self.solution.format(successful_previous_attempt=solution)
        hint = "" if feedback is None else self.feedback.format(feedback_raw=feedback)
        return self.reprompt.format(prompt=prompt, solution=shown, feedback=hint)
