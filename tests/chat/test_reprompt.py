"""The teacher's prompt: templates, conversations, thinking."""

from __future__ import annotations

import pytest

from rlexp.chat.reprompt import check_last_message, reprompted, without_thinking
from rlexp.config.errors import UserError
from rlexp.config.sdpo import FEEDBACK, REPROMPT, SOLUTION, SDPOConfig
from rlexp.records.reprompt import Templates

DEFAULT = Templates(REPROMPT, SOLUTION, FEEDBACK)
TAIL = "\n\nCorrectly solve the original question.\n"


@pytest.mark.rows("SDPO-035", "SDPO-036", "SDPO-037")
def test_the_default_templates_letter_by_letter() -> None:
    solution, feedback = "\nCorrect solution:\n\n4\n\n", "\nThe following is feedback from your unsuccessful earlier attempt:\n\nno\n\n"
    assert DEFAULT.filled("2+2=", "4", "no") == "2+2=" + solution + feedback + TAIL
    assert DEFAULT.filled("2+2=", "4", None) == "2+2=" + solution + TAIL
    assert DEFAULT.filled("2+2=", None, "no") == "2+2=" + feedback + TAIL
    config = SDPOConfig()
    assert (config.reprompt_template, config.solution_template, config.feedback_template) == (REPROMPT, SOLUTION, FEEDBACK)


@pytest.mark.rows("SDPO-038")
def test_braces_in_what_is_put_in_stay() -> None:
    text = DEFAULT.filled("f{x} {solution}", "\\boxed{4} {feedback} {}", "{prompt} {0} }{")
    assert "f{x} {solution}" in text and "\\boxed{4} {feedback} {}" in text and "{prompt} {0} }{" in text


@pytest.mark.rows("SDPO-040")
def test_of_a_conversation_the_last_message_is_rewritten() -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    made = reprompted(messages, DEFAULT, "4", None)
    assert made[:3] == messages[:3] and made[3] == {"role": "user", "content": DEFAULT.filled("c", "4", None)}
    assert messages[3] == {"role": "user", "content": "c"}, "the task is not changed"
    parts = [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image", "image": "i"}, {"type": "text", "text": "y"}]}]
    assert reprompted(parts, DEFAULT, "4", None)[0]["content"] == DEFAULT.filled("x y", "4", None)
    assert reprompted("plain", DEFAULT, None, "no") == DEFAULT.filled("plain", None, "no")


@pytest.mark.rows("SDPO-040", "SDPO-113")
def test_the_last_message_must_be_the_users() -> None:
    with pytest.raises(UserError, match="last message is from the assistant"):
        reprompted([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], DEFAULT, "4", None)
    check_last_message("text")
    with pytest.raises(UserError, match="training task 3"):
        check_last_message([{"role": "system", "content": "a"}], "training task 3")


@pytest.mark.rows("SDPO-032")
@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("<think>a\nb</think>\n\n4\n", "4"),
        ("x <think>a</think> y <think>b</think> z", "x  y  z"),
        ("<think>never closed", "<think>never closed"),
        ("no thinking ", "no thinking"),
        ("a</think>4", "a</think>4"),
    ],
)
def test_thinking_is_removed(text: str, left: str) -> None:
    assert without_thinking(text) == left


def test_thinking_that_the_template_opened_is_removed_too() -> None:
    assert without_thinking("a\nb</think>4", "<|im_start|>assistant\n<think>\n") == "4"
    assert without_thinking("cut off", "<think>\n") == "cut off"
