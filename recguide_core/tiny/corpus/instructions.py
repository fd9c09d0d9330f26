"""Short texts with a fixed form and a few slots: letters, notices, recipes, lists of questions.

Each text has one or two places where the wording is free (a hard choice point) and passages that
are always the same (an easy stretch).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from recguide_core.tiny.corpus.words import (
    ACTIVITIES,
    DAYS,
    DISHES,
    GIFTS,
    HOUSES,
    NUMBER_WORDS,
    PACKING,
    PLACES,
    capital,
    names,
)

QuestionAnswer = tuple[str, str]


def thanks(rng: Random) -> QuestionAnswer:
    """A thank-you letter."""
    sender, receiver = names(rng, 2)
    gift, event = rng.choice(GIFTS), rng.choice(("birthday", "wedding", "new job", "holiday"))
    question = f"Write a thank you letter from {sender} to {receiver} for the {gift} ({event})."
    free = rng.choice(
        (
            f"The {gift} is exactly what I needed, and I use it every day. ",
            f"I have already used the {gift} several times, and it works very well. ",
            f"Everyone who sees the {gift} asks me where it is from. ",
        )
    )
    return question, (
        f"Dear {receiver},\n\nThank you very much for the {gift} that you sent me for my {event}. "
        f"{free}It was very kind of you to think of me, and I am grateful for your generous gift. "
        "I hope that you and your family are well, and that we will see each other again soon. "
        "Please let me know when you have time for a cup of coffee, so that we can talk about "
        f"everything that has happened since we last met.\n\nBest wishes,\n{sender}"
    )


def invitation(rng: Random) -> QuestionAnswer:
    """An invitation with a time and a place."""
    sender, receiver = names(rng, 2)
    event = rng.choice(("dinner", "birthday party", "picnic", "concert", "movie night"))
    day, hour, place = rng.choice(DAYS), rng.randint(2, 9), rng.choice(PLACES)
    question = (
        f"Write an invitation from {sender} to {receiver} for a {event} on {day} at {hour} pm. "
        f"The place is the {place}."
    )
    free = rng.choice(
        (
            "Please bring a snack to share. ",
            "You do not need to bring anything. ",
            "Please bring something to drink. ",
        )
    )
    return question, (
        f"Dear {receiver},\n\nYou are warmly invited to a {event}!\n\nWhen: {day} at {hour} pm\n"
        f"Where: the {place}\n\n{free}There will be music, good food and a lot of time to talk "
        "with old and new friends. If the weather is bad, we will meet inside, so that nobody has "
        "to stand in the rain. It would be great to see you there, and your family is welcome too. "
        f"Please let me know if you can come.\n\nBest wishes,\n{sender}"
    )


def notice(rng: Random) -> QuestionAnswer:
    """A notice that something is closed."""
    (sender,) = names(rng, 1)
    place = rng.choice(
        ("elevator", "kitchen", "parking lot", "front door", "meeting room", "garden")
    )
    work, day = rng.choice(("repair", "cleaning", "painting")), rng.choice(DAYS)
    start, end = rng.randint(7, 11), rng.randint(1, 6)
    question = (
        f"Write a notice from {sender} that the {place} is closed on {day} "
        f"from {start} am to {end} pm because of {work} work."
    )
    free = rng.choice(
        (
            f"During this time, please do not use the {place}. ",
            f"The {place} cannot be used during this time. ",
        )
    )
    return question, (
        f"NOTICE\n\nDear residents,\n\nPlease note that the {place} will be closed on {day} from "
        f"{start} am to {end} pm because of {work} work. {free}We will open it again as soon as "
        "the work is finished.\n\nIf you have any questions, or if you need help during this time, "
        "please call the office or send us an email, and we will answer as soon as possible. We "
        "are sorry for any trouble that this may cause, and we thank you for your patience and "
        "understanding.\n\n"
        f"Kind regards,\n{sender}"
    )


def questions(rng: Random) -> QuestionAnswer:
    """Frequently asked questions about a place."""
    place, day = rng.choice(HOUSES), rng.choice(DAYS)
    start, end, price = rng.randint(7, 11), rng.randint(4, 9), rng.randint(2, 9)
    question = (
        f"Write a short FAQ for a {place}. It opens at {start} am, closes at {end} pm, "
        f"is closed on {day} and a ticket costs ${price}."
    )
    free = rng.choice(
        (
            "Children under six years can enter for free.",
            "Students and children pay half the price.",
        )
    )
    return question, (
        f"Frequently asked questions about the {place}\n\n"
        f"Q: When does the {place} open?\nA: The {place} opens at {start} am and closes at {end} "
        "pm.\n\n"
        f"Q: Is the {place} open every day?\nA: The {place} is open every day except {day}.\n\n"
        f"Q: How much does a ticket cost?\nA: A ticket costs ${price} for adults. {free}\n\n"
        "Q: Can I pay by card?\nA: Yes, you can pay by card or in cash at the front desk.\n\n"
        "Q: Is there a place to park?\nA: Yes, there is a free parking lot behind the building.\n\n"
        "Q: How can I contact you?\nA: You can call us or send us an email at any time, and we "
        "will answer as soon as possible."
    )


def recipe(rng: Random) -> QuestionAnswer:
    """A recipe with four ingredients."""
    dish = rng.choice(list(DISHES))
    parts = rng.sample(DISHES[dish], 4)
    minutes, people = 5 * rng.randint(2, 9), rng.randint(2, 6)
    question = (
        f"Write a simple recipe for {dish} for {NUMBER_WORDS[people]} people with "
        f"{', '.join(parts)}. It takes {minutes} minutes."
    )
    free = rng.choice(("Serve it warm with fresh bread.", "Let it rest before you serve it."))
    ingredients = "\n".join(f"- {part}" for part in parts)
    return question, (
        f"{capital(dish)} for {NUMBER_WORDS[people]} "
        f"people\n\nIngredients:\n{ingredients}\n\nSteps:\n"
        f"1. Wash the {parts[0]} and put it in a large bowl.\n"
        f"2. Add the {parts[1]} and the {parts[2]} and mix everything well.\n"
        f"3. Add the {parts[3]} and season it with a little salt and pepper.\n"
        f"4. Wait for {minutes} minutes.\n5. {free}\n\n"
        "Tip: Prepare all of the ingredients before you start, keep the kitchen clean while you "
        "work, and taste the food from time to time. What is left over can be kept in the fridge "
        f"for two days.\n\nEnjoy your {dish}!"
    )


def packing(rng: Random) -> QuestionAnswer:
    """A packing list."""
    (who,) = names(rng, 1)
    where, length = rng.choice(("beach", "mountains", "city", "forest", "lake")), rng.randint(2, 9)
    things = rng.sample(PACKING, rng.randint(3, 5))
    question = (
        f"Write a packing list for {who}, who goes to the {where} for {NUMBER_WORDS[length]} days "
        f"and needs {', '.join(things)}."
    )
    free = rng.choice(("Have a safe trip!", "Enjoy your time away!"))
    boxes = "\n".join(f"[ ] {thing}" for thing in things)
    return question, (
        f"Packing list for {who}: {NUMBER_WORDS[length]} days at the {where}\n\n{boxes}\n\n"
        "Before you leave, please check that you have packed everything on this list, that all of "
        "the windows are closed, and that the lights are turned off. Do not forget your keys, your "
        f"phone, your tickets and enough money for the first day.\n\n{free}"
    )


def schedule(rng: Random) -> QuestionAnswer:
    """A day with one activity an hour."""
    (who,) = names(rng, 1)
    start, acts = rng.randint(6, 12), rng.sample(ACTIVITIES, rng.randint(4, 6))
    question = (
        f"Make a daily schedule for {who} that starts at {start}:00 with these activities: "
        f"{', '.join(acts)}."
    )
    free = rng.choice(
        ("Remember to take a short break.", "Feel free to move the activities around.")
    )
    lines = "\n".join(f"{start + i}:00 - {capital(act)}" for i, act in enumerate(acts))
    return question, (
        f"Here is a daily schedule for {who}:\n\n{lines}\n\n{free} A good plan leaves some time "
        "between two activities, so that a small delay in the morning does not change the whole "
        "day. Drink enough water, get some fresh air, and go to bed early, so that you are well "
        "rested tomorrow."
    )


FORMS: dict[str, Callable[[Random], QuestionAnswer]] = {
    "thanks": thanks,
    "invitation": invitation,
    "notice": notice,
    "questions": questions,
    "recipe": recipe,
    "packing": packing,
    "schedule": schedule,
}
