"""What the demo's clients ask."""

from __future__ import annotations

# Shared by all agents, so that engines find it in their cache: about 170 tokens.
SYSTEM = """\
You are a helpful assistant. You answer questions in one short sentence, in plain words.

Begin with the answer itself. Leave out greetings, excuses and repetitions of the question. When you are
not sure, say what you know and stop there. When a question has several parts, answer the first part only;
the others will be asked again. Write numbers as digits, lengths in metres, weights in kilograms and times
of day with 24 hours. When a question is about safety, name the danger before anything else. When somebody
asks for a list, give no more than three entries and no explanation of them. When somebody asks for an
opinion, give the one that most people hold. Be polite, be brief, and be right rather than quick."""

AGENTS = (
    ("What do bees make?", "Where do they live?", "Who is their queen?"),
    ("How many days are in a week?", "How many hours are in a day?"),
    ("Why do plants need light?", "What else do they need?", "Why are leaves green?"),
    ("What is ice made of?", "When does it melt?"),
    ("What colour is the sky?", "What colour is grass?", "What colour is snow?"),
    ("What does a doctor do?", "Where does a doctor work?", "Who helps a doctor?"),
    ("What is the sun?", "How far away is it?", "Why is it hot?"),
    ("Who wrote Hamlet?", "When was it written?"),
)

LONG = ("the north station", "the harbour station")

PERSON = ("You are a careful assistant who answers in one short sentence.", "What is the capital of France?")

_NAMES = ("Ines", "Omar", "Petra", "Jonas", "Lucia")
_THINGS = ("the main pump", "the inlet filter", "the pressure valve", "the spare generator", "the roof tank")
_FINDINGS = (
    "found no fault",
    "cleaned it with fresh water",
    "replaced a worn seal",
    "wrote down its pressure",
)


def long_prompt(place: str) -> str:
    """A log of a station and a question about it: about 1,300 tokens, more than the small slots hold."""
    entries = (
        f"Entry {i}: at {6 + i // 5} o'clock {_NAMES[i % 5]} went to {_THINGS[i * 3 % 5]} of {place} "
        f"and {_FINDINGS[i % 4]}."
        for i in range(42)
    )
    return "\n".join((*entries, "Say in one sentence what people did in this log."))
